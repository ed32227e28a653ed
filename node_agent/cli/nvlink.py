"""`--topology nvlink`: the NVLink domain of this node's GPUs, as NVIDIA's driver reports it.

On machines such as GB200 NVL72, GPUs of several nodes share an NVLink switch. They have the same ClusterUUID and
CliqueId. NVIDIA's tools for Kubernetes make of these the label `nvidia.com/gpu.clique`, in the same form as here.
"""

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from node_agent import words

WITHIN_S = 20.0
"""Most seconds that nvidia-smi may take."""
END_S = 1.0
"""Seconds that it has to end after it is killed."""
_FABRIC = re.compile(r"^ *Fabric *\n((?: +\w+ +: .*\n)+)", re.M)
_FIELD = re.compile(r"^ +(\w+) +: (.*)$", re.M)
_NONE = re.compile(r"[0-]*")
"""UUID of a node whose NVLink ends at the node, as with HGX H100."""


class NvlinkDomain(NamedTuple):
    """NVLink domain of a node, empty if there is none, and a line for people."""

    domain: str
    line: str


def find(environment: Mapping[str, str]) -> NvlinkDomain:
    """Return the domain of this node's GPUs."""
    text, why = _asked(environment)
    if why:
        return NvlinkDomain("", words.plan.no_nvlink_domain(why))
    fabrics = [dict(_FIELD.findall(block)) for block in _FABRIC.findall(text)]
    domains = {f"{each['ClusterUUID']}.{each['CliqueId']}" for each in fabrics if _is_whole(each)}
    if len(domains) == 1:
        (domain,) = domains
        return NvlinkDomain(domain, words.plan.nvlink_domain(domain))
    return NvlinkDomain("", words.plan.no_nvlink_domain(words.plan.nvlink_domains(sorted(domains))))


def _is_whole(fabric: Mapping[str, str]) -> bool:
    """Return whether the GPU has been registered in a domain of several nodes."""
    is_done = fabric.get("State") == "Completed" and fabric.get("Status") == "Success"
    uuid, clique = fabric.get("ClusterUUID", ""), fabric.get("CliqueId", "")
    return is_done and clique.isdigit() and _NONE.fullmatch(uuid) is None


def _asked(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return what the driver reports, and why it reports nothing. One of the two is empty."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(["nvidia-smi", "-q"], env=environment, stdin=null, stdout=pipe, stderr=null)
    except OSError as error:
        return "", words.plan.nvidia_smi_missing(error.strerror or str(error))
    try:
        text = process.communicate(timeout=WITHIN_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it in uninterruptible sleep
            process.communicate(timeout=END_S)
        return "", words.plan.nvidia_smi_hangs(WITHIN_S)
    return (text, "") if process.returncode == 0 else ("", words.plan.nvidia_smi_fails(process.returncode))

#!/usr/bin/env bash
# Installs what tests need beside Python: etcd for those of several servers, curl and jq for those of the pages for
# operators, iproute2 for those of several hosts, faketime for those whose clocks jump, strace for those with slow
# disks, valgrind for those that count instructions, Slurm and munge for those of Slurm jobs, systemd for those of its
# units, openssh-server for those of clusters by ssh, kubectl for those of Kubernetes' manifests, prometheus (with
# promtool) for those of metrics and alerts, Chromium for those of the pages, zsh and fish for those of completion,
# nginx and haproxy for those of proxies, podman, runc, mmdebstrap, netavark, aardvark-dns and iptables for those of
# containers. They are skipped where it is missing.
# Only on Debian and its kin and only as root; does nothing where everything is there. Starts no service.
set -euo pipefail

declare -A package_of=([etcd]=etcd-server [etcdctl]=etcd-client [curl]=curl [jq]=jq [openssl]=openssl [ip]=iproute2 [faketime]=faketime
  [strace]=strace [valgrind]=valgrind [slurmctld]=slurmctld [slurmd]=slurmd [sbatch]=slurm-client [munged]=munge
  [systemd-analyze]=systemd [sshd]=openssh-server [kubectl]=kubernetes-client [prometheus]=prometheus [chromium]=chromium
  [zsh]=zsh [fish]=fish [nginx]=nginx-light [haproxy]=haproxy [podman]=podman [runc]=runc [mmdebstrap]=mmdebstrap
  [iptables]=iptables [/usr/lib/podman/netavark]=netavark
  [/usr/lib/podman/aardvark-dns]=aardvark-dns)

missing=()  # each once: some packages have several programs
for program in "${!package_of[@]}"; do
  command -v "$program" >/dev/null || [[ " ${missing[*]} " == *" ${package_of[$program]} "* ]] ||
    missing+=("${package_of[$program]}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "install-debian-packages: not tested: what needs ${missing[*]}. On Debian and its kin:" \
    "sudo apt-get install --no-install-recommends ${missing[*]}; elsewhere install the same programs" >&2
  exit 0
fi

echo "install-debian-packages: installing ${missing[*]}"
# RUNLEVEL: invoke-rc.d starts no service then.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install=(apt-get install --quiet --quiet --yes --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { apt-get update --quiet --quiet && "${install[@]}" >/dev/null; } ||
  echo "install-debian-packages: could not install them; not tested: what needs ${missing[*]}" >&2

"""Real proxies before a server, as sites run them: nginx and haproxy, each with its own configuration."""

import re
import shutil
import socket
from pathlib import Path
from typing import Literal, Self

import pytest

from tests.support.process_info import until
from tests.support.programs import Program

NGINX, HAPROXY = (shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin") for name in ("nginx", "haproxy"))
Kind = Literal["nginx", "haproxy"]

needs_proxies = pytest.mark.skipif(
    not (NGINX and HAPROXY), reason="nginx or haproxy is missing: tests/install-debian-packages.sh installs them"
)

_HAPROXY = """\
global
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
{settings}
frontend agents
  bind {listen}
  default_backend servers
backend servers
  server one {server}
"""
_NGINX_SERVER = """\
server {{
  listen {listen};
  location / {{
    proxy_pass http://{server};
    {settings}
  }}
}}
"""
_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{servers}
}}
"""
"""A configuration around the part that a site writes: the `server` blocks."""


def haproxy_configuration(listen: str, server: str, settings: str = "") -> str:
    """Return a configuration of haproxy that forwards HTTP from `listen` to `server`. `settings`: lines for all
    proxies.
    """
    return _HAPROXY.format(listen=listen, server=server, settings=settings)


def nginx_configuration(listen: str, server: str, settings: str = "") -> str:
    """Return an nginx `server` block that forwards HTTP from `listen` to `server`. `settings`: its location's lines."""
    return _NGINX_SERVER.format(listen=listen, server=server, settings=settings)


def command(kind: Kind, folder: Path, configuration: str) -> tuple[str, ...]:
    """Write the configuration into `folder` and return the command of the proxy, which is a single process."""
    path = folder / f"{kind}.conf"
    path.write_text(configuration if kind == "haproxy" else _NGINX.format(folder=folder, servers=configuration))
    return {"nginx": (str(NGINX), "-e", "stderr", "-c"), "haproxy": (str(HAPROXY), "-db", "-f")}[kind] + (str(path),)


class Proxy(Program):
    """A proxy on loopback."""

    endpoint: str

    @classmethod
    async def listen(cls, kind: Kind, folder: Path, port: int, server: str, settings: str = "") -> Self:
        """Start a proxy from `port` to `server`. Return once it accepts connections."""
        make = {"nginx": nginx_configuration, "haproxy": haproxy_configuration}[kind]
        return await cls.configured(kind, folder, port, make(f"127.0.0.1:{port}", server, settings))

    @classmethod
    async def configured(cls, kind: Kind, folder: Path, port: int, configuration: str) -> Self:
        """Start a proxy whose configuration makes it listen at `port`."""
        proxy = await cls.start(*command(kind, folder, configuration))
        proxy.endpoint = f"127.0.0.1:{port}"
        await until(lambda: not proxy.is_running or _accepts(port))
        assert proxy.is_running, proxy.err
        return proxy


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


SNIPPET = re.compile(r"^```(nginx|haproxy)\n(.+?)^```", re.DOTALL | re.MULTILINE)
_PORT, _SERVER = 29_400, "10.0.0.1:29400"


def of_page(page: str, kind: Kind, port: int, server: str) -> str:
    """Return the configuration of this kind on a page of docs/, from `port` on loopback to `server`."""
    (found,) = [text for each, text in SNIPPET.findall(page) if each == kind]
    assert found.count(_SERVER) == 1
    there = found.replace(_SERVER, server)
    return re.sub(rf"(bind :|listen ){_PORT}", lambda match: f"{match[1].rstrip(':')}127.0.0.1:{port}", there)

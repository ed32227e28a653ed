"""An agent without our packages: `minimal_agent.py HOST:PORT RUN_ID NODE_ID NNODES COMMAND...`; protocol/README.md."""

import atexit
import http.client
import os
import secrets
import socket
import subprocess
import sys
import threading
import time

import msgpack

endpoint, run_id, node_id, nnodes, *command = sys.argv[1:]
me = {"run_id": run_id, "agent_id": secrets.token_hex(8), "secret": secrets.token_hex(16)}
FIELDS = {"RANK": "first_rank", "WORLD_SIZE": "world_size", "MASTER_ADDR": "master_addr", "MASTER_PORT": "master_port"}


def ask(line, path, **fields):
    while True:  # a request may be repeated: a copy has no effect
        try:
            headers = {"Content-Type": "application/msgpack"}
            line.request("POST", f"/v1/agent/{path}", msgpack.packb(me | fields), headers)
            response = line.getresponse()
            answer = msgpack.unpackb(response.read())
            if response.status == 200:
                return answer
            if response.status not in (421, 429, 503):  # the server does not lead, or is busy
                raise SystemExit(f"{answer['code']}: {answer['message']}")
        except (OSError, http.client.HTTPException):
            line.close()  # the next request opens another connection
        time.sleep(0.5)


def join(after_round):
    with socket.create_connection(endpoint.rsplit(":", 1)) as way:
        place = {"addr": way.getsockname()[0], "port": reserved.getsockname()[1], "node_id": node_id}
    nodes = {"min_nodes": int(nnodes), "max_nodes": int(nnodes)}
    return ask(
        polls, "join", after_round=after_round, local_world_size=1, settings=nodes, explicit_run_id=True, **place
    )


def report(worker, seat):
    end = {"rank": seat["first_rank"], "local_rank": 0, "pid": worker.pid, "exit_code": worker.wait()}
    failure = {"node_id": node_id, "cause": f"exit code {worker.returncode}", **end} if worker.returncode else None
    line = http.client.HTTPConnection(endpoint, timeout=15)  # the other connection waits for the next directive
    ask(line, "report", round=seat["round"], failure=failure)  # refused (409, stale_round) if a stop came first


polls = http.client.HTTPConnection(endpoint, timeout=15)  # its end tells the server that this node may be lost
reserved = socket.socket()  # MASTER_PORT if this node becomes group rank 0: bound, but not listening
reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
reserved.bind(("", 0))
reply, worker, seat = join(after_round=0), None, {"round": 0}
while (directive := reply["directive"])["tag"] != "finish":
    if directive["tag"] == "start" and directive["assignment"]["round"] > seat["round"]:
        seat = directive["assignment"]
        places = {name: str(seat[field]) for name, field in FIELDS.items()} | {"LOCAL_RANK": "0"}
        worker = subprocess.Popen(command, env=os.environ | places)
        atexit.register(worker.kill)  # also when the server fences it, as it does with a drained node's agent
        threading.Thread(target=report, args=(worker, seat), daemon=True).start()
    if directive["tag"] == "stop":
        worker.kill()
        reply = join(after_round=seat["round"])
    else:
        reply = ask(polls, "poll", revision=reply["revision"])
ask(polls, "leave", reason="the run has ended")
sys.exit(not directive["succeeded"])

"""`python -m tests.load --minutes 10`: the soak for longer, with what the server holds after each minute."""

import argparse
import asyncio
import resource
import signal
import tempfile
import time
from pathlib import Path

from tests.load.soak import RUNS, Soak, forgotten, records, serve, settled

SPAN_S = 60.0


async def soak(runs: int, minutes: float, seed: int) -> None:
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory() as folder:
        server = await serve(Path(folder))
        try:
            work, began = Soak(server.port, runs=runs, seed=seed), time.monotonic()
            await work.play()
            print(f"warm: {await settled(server)}", flush=True)
            while time.monotonic() < began + 60 * minutes:
                await work.play(seconds=min(SPAN_S, 60 * minutes))
                print(f"{time.monotonic() - began:.0f} s, {work.played} runs: {await settled(server)}", flush=True)
            await forgotten(server)
        finally:
            server.process.terminate()
            await server.exit_code()
        print(f"{records(Path(folder))} records left", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=RUNS, help="at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(soak(args.runs, args.minutes, args.seed))


if __name__ == "__main__":
    main()

"""Groups of ranks, one group after the other, forked from one process that has imported all that runs need.

    python tests/training/forked_ranks.py GROUPS.json

A rank that torchrun starts imports for three seconds of its own. GROUPS.json: a list of {"ranks": how many,
"runs": what watched_train.py plays, "first": the name of a function of sharded_models.py to call before,
"copies": [[run folder, copy], ...] to make before that}.
Prints the exit statuses of each group as JSON.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch._dynamo  # which the first optimizer of each child would import
import torch.distributed.fsdp

from tests.training import sharded_models, watched_train

ROOT = Path(__file__).resolve().parents[2]


def forked(group: dict) -> list[int]:
    """The ranks of a group meet in a store of this process, as they meet in torchrun's."""
    for folder, copy in group.get("copies", []):
        shutil.copytree(folder, copy)
    with socket.create_server(("127.0.0.1", 0)) as server:
        children = [child(group, rank, server) for rank in range(group["ranks"])]
        # a thread of its own, so after the forks; it takes the socket over
        port, descriptor = server.getsockname()[1], server.detach()
    store = torch.distributed.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
    )
    statuses = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]
    del store
    return statuses


def child(group: dict, rank: int, server: socket.socket) -> int:
    """-> process id"""
    if pid := os.fork():
        return pid
    status = 1
    try:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": group["ranks"]}
        names |= {"LOCAL_WORLD_SIZE": group["ranks"], "MASTER_ADDR": "127.0.0.1"}
        names |= {"MASTER_PORT": server.getsockname()[1], "TORCHELASTIC_USE_AGENT_STORE": True}
        os.environ |= {name: str(value) for name, value in names.items()}
        server.close()
        watched_train.ranks_end_at_once()
        if group.get("first"):
            getattr(sharded_models, group["first"])()
        watched_train.play(group["runs"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(groups: list[dict], folder: Path) -> tuple[list[list[int]], str]:
    """Run groups in a new process -> (exit statuses of the ranks of each group, what all of them said)"""
    path, printed = folder / "groups.json", folder / "printed.txt"
    path.write_text(json.dumps(groups))
    with printed.open("w") as file:
        done = subprocess.run(
            [sys.executable, __file__, path], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=file, text=True, timeout=600,
        )  # fmt: skip
    said = printed.read_text()
    assert done.returncode == 0, said
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + said


if __name__ == "__main__":
    found = []
    for one in json.loads(Path(sys.argv[1]).read_text()):
        found.append(forked(one))
    print(json.dumps(found), flush=True)

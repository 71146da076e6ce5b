"""Tasks of lm-evaluation-harness (papers' table 6) on our models as they are.

The harness is optional: pip install lm_eval. Its tasks take their data from the Hugging Face hub. A task of
your own, a YAML file in `include_path`, can take them from local files:

    task: rivers
    dataset_path: json
    dataset_kwargs: {data_files: {test: rivers.jsonl}}
    test_split: test
    output_type: multiple_choice
    doc_to_text: "{{question}}"
    doc_to_choice: "{{options}}"
    doc_to_target: answer

The harness runs in a process of its own: see `harness`.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

from evaluation import EvaluationError

ROOT = Path(__file__).resolve().parents[1]
# The harness imports a package `evaluate`, which must not be our script of that name. So our modules are
# imported first, and then their folder is removed from the path.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
root = sys.argv[1]
elsewhere = [place for place in sys.path if os.path.realpath(place) != root]
sys.path = [root, *elsewhere]
from evaluation import harness
import decoding.decoder
sys.path = elsewhere
harness.main()
"""
TASKS = [
    "openbookqa", "piqa", "arc_easy", "winogrande", "hellaswag", "lambada_openai", "boolq", "sciq", "mmlu",
    "arc_challenge",
]  # fmt: skip


def evaluate(models: dict[str, str], **settings) -> dict:
    """Measures models, {name: path}, one after the other. Progress bars go to standard error.

    settings: the keywords of `harness.answer`, whose result is returned. Raises EvaluationError if the
    harness is not installed, if a task is unknown or cannot be measured, or if the harness's process dies.
    """
    command = [sys.executable, "-P", "-c", START, str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdin.write(json.dumps({"models": models, **settings}) + "\n")
            process.stdin.flush()
            text = process.stdout.read()
            process.wait()  # wait before standard input is closed, which would end the process at once
        except BrokenPipeError:
            text = ""  # the process ended at once; its exit status tells why
        except BaseException:  # Ctrl-C
            process.kill()
            raise
    if process.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if process.returncode or not text:
        killed = process.returncode < 0
        status = signal.Signals(-process.returncode).name if killed else f"status {process.returncode}"
        why = "out of memory, perhaps: take a smaller --batch_size" if killed else "see what it said above"
        raise EvaluationError(f"the process of lm-evaluation-harness ended with {status}; {why}")
    found = json.loads(text)
    if "error" in found:
        raise EvaluationError(found["error"])
    return found

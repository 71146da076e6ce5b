"""What stops a run: signals at bad moments, a launcher that is gone."""

import io
import os
import re
import signal
import sys

import pytest

from training.stopping import Stop


class Interrupting(io.RawIOBase):
    """A file within whose first write a SIGTERM arrives."""

    def __init__(self):
        self.written = b""

    def writable(self):
        return True

    def write(self, data):
        if not self.written:
            os.kill(os.getpid(), signal.SIGTERM)
        self.written += bytes(data)
        return len(data)


def test_a_signal_within_a_write_to_stderr(monkeypatch, capfd):
    """A progress bar is being written when the signal comes: the same stream cannot be entered twice."""
    raw = Interrupting()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True))
    with Stop() as stop:
        print("5/8 steps", file=sys.stderr)
    assert stop.signal == signal.SIGTERM
    assert raw.written.startswith(b"5/8 steps\n")
    said = raw.written.decode() + capfd.readouterr().err
    assert len(re.findall(r"\nstopping after this step.* \(SIGTERM\)\n", said)) == 1


def test_a_second_interrupt_stops_at_once_if_it_is_a_key_pressed_again(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("training.stopping.time.monotonic", lambda: now[0])
    with Stop() as stop:
        assert not stop
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the same one, delivered twice
        assert stop
        assert stop.status == 130
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err.count("stopping after this step") == 1


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "0"}
MACHINES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
RESTARTS = {"TORCHELASTIC_MAX_RESTARTS": "3"}


@pytest.mark.parametrize(
    ("environment", "stops"),
    [
        ({}, False),  # a process that a shell started goes on without it, as with nohup
        (TORCHRUN, True),
        (TORCHRUN | RESTARTS, True),
        (TORCHRUN | MACHINES, True),
        (TORCHRUN | MACHINES | RESTARTS, False),
    ],
)
def test_a_rank_whose_launcher_has_died_stops(monkeypatch, capsys, environment, stops):
    for key in {**TORCHRUN, **MACHINES}:
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with Stop() as stop:
        assert not stop
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert bool(stop) == stops
        assert bool(stop) == stops
    said = capsys.readouterr().err
    assert len(re.findall(r"stopping after this step.* \(torchrun has died\)", said)) == stops
    assert not stops or stop.status == 143

"""Calls of train.py that end with an error."""

import pytest

from train import main


def refused(capsys, arguments, *overrides):
    """What train.py says before it exits with an error."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *overrides])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err

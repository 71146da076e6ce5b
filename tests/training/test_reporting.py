"""What a run writes into its log."""

from types import SimpleNamespace

import pytest
import torch

from training import reporting


def test_mfu_is_of_all_ranks(tiny):
    """Four ranks at the rate at which one gets a share of the peak get a quarter of it each."""
    shares = []
    for world in (1, 4):
        run = SimpleNamespace(config=tiny(), device=torch.device("cpu"), ranks=SimpleNamespace(world=world))
        run.config.dtype = "bfloat16"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reporting, "peak_flops", lambda name, dtype: 1e9)
            shares.append(reporting.Report.mfu(run, 100.0)["mfu"])
    assert shares[0] == pytest.approx(4 * shares[1])

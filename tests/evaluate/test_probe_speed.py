"""The benchmark of the probe runs the real protocol, and says what it ran."""

import pytest

from simplicia.errors import UserError
from simplicia.evaluate.probe_speed import probe_speed

TINY = {"images": 60, "test_images": 20, "simplices": 8, "classes": 4, "encoder": "tiny", "device": "cpu"}


@pytest.mark.parametrize(("layer", "probes"), [("sem", 36), ("codes", 6)])
def test_a_tiny_grid(layer, probes):
    found = probe_speed(**TINY, epochs=3, layer=layer)
    assert found["probes"] == probes and found["precision"] == "float32" and found["peak_gib"] is None
    each = found["seconds_per_epoch"]
    per_epoch = each["choosing"] + each["retraining"]
    assert found["whole_seconds"] == pytest.approx(found["seconds"] + 97 * per_epoch)


def test_one_epoch_is_only_a_warm_up():
    with pytest.raises(UserError, match="at least 2"):
        probe_speed(**TINY, epochs=1)

"""How fast the parts are: the training step, the views, the probe, the softmax."""

from simplicia.bench.probe import bench_probe
from simplicia.bench.sem import bench_sem
from simplicia.bench.step import bench_step, bench_steps
from simplicia.bench.views import bench_views

__all__ = ["bench_probe", "bench_sem", "bench_step", "bench_steps", "bench_views"]

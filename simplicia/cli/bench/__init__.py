"""How fast the parts are: the training step, the views, the probe, the softmax."""

from simplicia.cli.bench.probe import bench_probe
from simplicia.cli.bench.sem import bench_sem
from simplicia.cli.bench.step import bench_step, bench_steps
from simplicia.cli.bench.views import bench_views

__all__ = ["bench_probe", "bench_sem", "bench_step", "bench_steps", "bench_views"]

"""Our vector quantisation compared with the library's: ``python benchmarks/vq.py [OUT.json]``.

Both get the same vectors, 512 codebooks of 128 codes in 32 dimensions as in the paper, and train, forward and
backward: nearest codes, commitment loss, moving averages and replacement of codes that are hardly used.
"""

import importlib.metadata
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from vector_quantize_pytorch import VectorQuantize

from simplicia.bottlenecks.vq import VectorQuantised
from simplicia.provenance import commit, versions


def seconds(function, z, grad):
    z.grad = None
    start = time.perf_counter()
    output, penalty = function(z)
    ((output * grad).sum() + penalty).backward()
    if z.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def obstacle(function, z):
    """Why a function does not compile into one graph, as a captured step needs it to; None if it does."""
    try:
        torch.compile(function, fullgraph=True, backend="aot_eager")(z)
    except Exception as error:
        return str(error).splitlines()[0]
    return None


def main(out: str = "results/bench/vq.json") -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, simplices, vertices, dimensions = 256, 512, 128, 32
    torch.manual_seed(0)
    z = torch.randn(batch, simplices * dimensions, device=device, requires_grad=True)
    grad = torch.randn_like(z)
    sizes = {"simplices": simplices, "vertices": vertices, "dimensions": dimensions}
    ours = VectorQuantised(z.shape[1], **sizes, norm=None, embedder="identity").to(device)
    library = VectorQuantize(
        dim=z.shape[1],
        heads=simplices,
        separate_codebook_per_head=True,
        codebook_dim=dimensions,
        codebook_size=vertices,
        decay=ours.decay,
        threshold_ema_dead_code=ours.dead_code_threshold * batch / vertices,
        commitment_weight=ours.commitment,
    ).to(device)

    def with_ours(z):
        return ours(z), ours.penalty

    def with_library(z):
        output, _, penalty = library(z)
        return output, penalty.sum()

    variants = {"ours": with_ours, "library": with_library}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(11):  # taking turns, so that both meet the same machine
        for name, function in variants.items():
            times[name].append(seconds(function, z, grad))
    median = {name: statistics.median(t[1:]) for name, t in times.items()}
    result = {
        "batch": batch,
        **sizes,
        "ours_ms": 1e3 * median["ours"],
        "library_ms": 1e3 * median["library"],
        "ratio": median["library"] / median["ours"],
        "obstacle_to_one_graph": {name: obstacle(f, z.detach()) for name, f in variants.items()},
        "library": f"vector-quantize-pytorch {importlib.metadata.version('vector-quantize-pytorch')}",
        "threads": torch.get_num_threads(),
        "commit": commit(),
        **versions(device),
    }
    print(json.dumps(result, indent=1))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

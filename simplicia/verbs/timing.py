"""The verb that measures speed: bench."""

from simplicia.options import Parser, positive, target
from simplicia.show import table


def bench(arguments: list[str]) -> None:
    parser = Parser("bench step", description="The whole step of recipes, on random images of CIFAR's shape.")
    parser.add_argument("what", choices=["step"])
    parser.add_argument(
        "recipes", nargs="*", default=["cifar100-byol", "cifar100-byol-sem"], metavar="RECIPE"
    )
    parser.add_argument("--engines", nargs="+", default=["auto", "eager"], help="(default: auto eager)")
    parser.add_argument("--steps", type=positive, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=target, metavar="PATH", help="where the numbers go as well")
    given = parser.parse(arguments)
    from simplicia.bench import bench_steps

    found = bench_steps(given.recipes, given.engines, given.steps, given.device, given.json)
    rows = [
        [
            row["recipe"],
            row["engine"],
            f"{row['ms_per_step']:.2f}",
            f"{row['images_per_s']:,.0f}",
            "-" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
            f"{row['startup_s']:.0f}",
        ]
        for row in found
    ]
    title = f"steps on {found[0]['device']}, torch {found[0]['torch']}"
    table(title, ["recipe", "engine", "ms per step", "images/s", "peak GiB", "start-up s"], rows)

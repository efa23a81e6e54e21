"""simplicia encode: images to representations."""

import sys

from simplicia.cli.options import Parser
from simplicia.cli.verbs import verb


@verb("encode RUN IMAGES", "encode images as features or codes: simplicia encode RUN images/ --out codes.npz")
def encode(parser: Parser, arguments: list[str]) -> None:
    """Write the representations of images to an .npz file.

    The file also has the images' file names or, for a named data set, labels, classes and split.
    """
    from simplicia.evaluate.encode import check_layers, encode
    from simplicia.run import load

    parser.add("run", "--temperature", "--network", "--data-dir", "--device", "--quiet")
    parser.add_argument("images", metavar="IMAGES", help="folder of images, an image, or a data set")
    parser.add_argument("--out", required=True, metavar="FILE.npz", help="file to write")
    parser.add(
        "--layer",
        nargs="+",
        help="encoder, embedder, sem, codes, …, or several (default: sem if the run has it)",
    )
    args = parser.parse(arguments)
    run = load(args.run, args.device)
    layers = check_layers(run, args.layer, args.temperature)
    count, skipped, path = encode(
        run, args.images, args.out, layers, args.temperature, args.network, args.data_dir, args.quiet
    )
    print(f"{count} images, layer {', '.join(layers)}, written to {path}")
    for name, reason in skipped[:5]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > 5:
        print(f"… and {len(skipped) - 5} more", file=sys.stderr)

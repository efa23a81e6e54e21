"""The verb that takes a trained run elsewhere: export."""

from simplicia.cli.options import Parser, amount


def export(arguments: list[str]) -> None:
    parser = Parser(
        "export RUN FILE",
        description="The encoder's weights (.safetensors), or everything from pixels to a layer as a program "
        "of torch.export (.pt2) or for ONNX (.onnx).",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("file", metavar="FILE", help="ends in .safetensors, .pt2 or .onnx")
    parser.add_argument("--layer", help="encoder, embedder, sem, codes, … (default: sem if trained with it)")
    parser.add_argument("--temperature", type=amount, help="of SEM (default: the run's own)")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    given = parser.parse(arguments)
    from simplicia.run import load

    run = load(given.run, "cpu")
    path = run.export(given.file, given.layer, given.temperature, given.network)
    size = run.recipe.image_size
    if path.suffix == ".safetensors":
        print(f"the weights of {run.recipe.encoder}, written to {path}")
    else:
        layer = run.check_layer(given.layer)
        print(f"images (N, 3, {size}, {size}) from 0 to 1 to layer {layer}, written to {path}")

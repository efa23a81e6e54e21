"""simplicia export: a trained model as a file for other software."""

from simplicia.cli.options import Parser
from simplicia.cli.verbs import verb


@verb("export RUN FILE", "export the encoder, or everything up to a layer: simplicia export RUN model.onnx")
def export(parser: Parser, arguments: list[str]) -> None:
    """Export the encoder's weights (.safetensors), or the model from pixels to a layer (.pt2, .onnx)."""
    from simplicia.run import load

    parser.add("run", "--layer", "--temperature", "--network")
    parser.add_argument("file", metavar="FILE", help="file to write: .safetensors, .pt2 or .onnx")
    args = parser.parse(arguments)
    run = load(args.run, "cpu")
    path = run.export(args.file, args.layer, args.temperature, args.network)
    size = run.recipe.image_size
    if path.suffix == ".safetensors":
        print(f"the weights of {run.recipe.encoder}, written to {path}")
    else:
        layer = run.check_layer(args.layer)
        print(f"images (N, 3, {size}, {size}) from 0 to 1 to layer {layer}, written to {path}")

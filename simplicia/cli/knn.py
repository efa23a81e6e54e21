"""simplicia knn: nearest neighbours."""

from simplicia.cli.measure import finish, images, start
from simplicia.cli.options import MEASURE, Parser, positive
from simplicia.cli.tables import accuracy, decimals
from simplicia.cli.verbs import verb


@verb("knn RUN", "measure the nearest-neighbour accuracy of a run")
def knn(parser: Parser, arguments: list[str]) -> None:
    """Classify test images by the votes of the nearest training images, weighted by cosine similarity.

    On codes, the weight is the share of codes in common.
    """
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.knn import knn
    from simplicia.evaluate.make_result import K

    parser.add(*MEASURE, "--temperature")
    parser.add_argument("--k", type=positive, default=K, help=f"number of neighbours (default: {K})")
    args, _, run = start(parser, arguments)
    layer = run.check_layer(args.layer)
    train, test = load_labelled(run, args.data, args.data_dir)
    result = knn(run, train, test, layer, args.temperature, args.k, network=args.network)
    title = f"{result['k']} nearest neighbours, {images(result)}, {result['network']} network"
    row = [layer, result["temperature"], accuracy(result), decimals(result.get("top5_accuracy"))]
    finish(run, "knn", result, args, title, ["layer", "temperature", "test %", "top-5 %"], [row])

"""simplicia finetune, simplicia semi: train the encoder further with all labels, or with a few."""

from pathlib import Path

from simplicia.cli.measure import finish, start
from simplicia.cli.options import MEASURE, Parser
from simplicia.cli.tables import accuracy, decimals
from simplicia.cli.verbs import verb
from simplicia.errors import UserError


@verb("finetune RUN", "train the encoder further with the labels of another data set")
def finetune(parser: Parser, arguments: list[str]) -> None:
    """Train encoder, embedder and a new classifier with labels, and test once.

    The learning rate is chosen on validation images; then training is repeated on all training images.
    Layers: sem or encoder.
    """
    from simplicia.evaluate.finetune import FinetuneSettings, finetune, trainable_layer
    from simplicia.evaluate.transfer import load_splits

    parser.add(*MEASURE)
    args, settings, run = start(parser, arguments, FinetuneSettings())
    layer = trainable_layer(run, args.layer)
    sets = load_splits(run, args.data, args.data_dir, settings.validation, settings.seed)
    result = finetune(run, sets, layer, settings, args.network, args.quiet)
    title = f"fine-tuned on {result['dataset']}, {layer}, {result['steps']} steps"
    row = [result["lr"], decimals(result["validation_accuracy"]), accuracy(result)]
    row.append(decimals(result["mean_class_accuracy"]))
    columns = ["learning rate", "validation %", "test %", "mean of classes %"]
    finish(run, "finetune", result, args, title, columns, [row])


@verb("semi RUN", "train the encoder further with a small share of the labels")
def semi(parser: Parser, arguments: list[str]) -> None:
    """Fine-tune on a share of the labels, 1 % by default. Layers: sem or encoder."""
    from simplicia.evaluate.features import load_labelled
    from simplicia.evaluate.finetune import trainable_layer
    from simplicia.evaluate.semi import SemiSettings, semi

    parser.add(*MEASURE)
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="names of the labelled images, one a line (default: drawn)"
    )
    args, settings, run = start(parser, arguments, SemiSettings())
    if args.list is not None and args.fraction is not None:
        raise UserError("--list names the labelled images and --fraction draws them; give one of the two")
    layer = trainable_layer(run, args.layer)
    train, test = load_labelled(run, args.data, args.data_dir)
    result = semi(run, train, test, layer, settings, args.list, args.network, args.quiet)
    title = f"{result['labelled_images']} labels of {result['dataset']}, {layer}: {result['labelled_list']}"
    row = [result["lr"], result["epochs"], result["temperature"], decimals(result["validation_accuracy"])]
    row += [accuracy(result), *(decimals(result.get(k)) for k in ("mean_class_accuracy", "top5_accuracy"))]
    columns = ["learning rate", "epochs", "temperature", "validation %", "test %", "mean of classes %"]
    finish(run, "semi", result, args, title, [*columns, "top-5 %"], [row])

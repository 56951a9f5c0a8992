"""Find the language of source code, and other types of text.

python examples/text/classify_text.py FILE ...
"""

import argparse
import importlib.util
import json
from pathlib import Path

import numpy as np

import qaic


def main() -> None:
    """Compile the classifier of the package magika, and run it on each file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    arguments = parser.parse_args()

    model = find_model()
    config = json.loads((model.parent / "config.min.json").read_text())
    inputs = [features(path, config) for path in arguments.files]
    length = config["beg_size"] + config["end_size"]
    shape = {"input_name": "bytes", "input_type": "int32", "input_shape": [1, length]}
    with qaic.Session(model, model_inputs=[shape], num_activations=2) as session:
        for path, outputs in zip(arguments.files, session.map(inputs), strict=True):
            (scores,) = outputs.values()
            print(f"{path}: {config['target_labels_space'][scores[0].argmax()]}")


def find_model() -> Path:
    """Return the path of the newest model in the installed package, without importing the package."""
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps magika")
    return max(Path(spec.origin).parent.glob("models/standard*/model.onnx"))


def features(path: Path, config: dict[str, int]) -> dict[str, np.ndarray]:
    """Return the first and the last bytes of a file, padded to the length of the input."""
    data = path.read_bytes()
    begin = data[: config["block_size"]].lstrip()[: config["beg_size"]]
    end = data[-config["block_size"] :].rstrip()[-config["end_size"] :]
    if len(begin) < config["min_file_size_for_dl"]:
        raise SystemExit(f"{path}: {config['min_file_size_for_dl']} bytes of text or more are expected")
    tokens = np.full(config["beg_size"] + config["end_size"], config["padding_token"], np.int32)
    tokens[: len(begin)] = np.frombuffer(begin, np.uint8)
    if end:
        tokens[-len(end) :] = np.frombuffer(end, np.uint8)
    return {"bytes": tokens[None]}


if __name__ == "__main__":
    main()

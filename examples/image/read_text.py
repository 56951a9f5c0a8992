"""Read a line of text in a picture.

python examples/image/read_text.py [PICTURE] [--precision float16]
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import onnx

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError:
    raise SystemExit("Pillow is missing: pip install pillow") from None

import qaic

HEIGHT, WIDTH = 48, 320


def main() -> None:
    """Compile the text recognizer of the package rapidocr-onnxruntime, and run it on one picture."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("picture", nargs="?", help="picture of one line; default: one that is drawn")
    parser.add_argument("--precision", choices=["float32", "float16"], default="float32")
    arguments = parser.parse_args()

    model = find_model()
    characters = find_characters(model)
    picture = Image.open(arguments.picture) if arguments.picture else draw("openqaic 2026")
    with qaic.Session(
        model,
        model_inputs=[{"input_name": "x", "input_type": "float", "input_shape": [1, 3, HEIGHT, WIDTH]}],
        convert_to_fp16=arguments.precision == "float16",
    ) as session:
        (scores,) = session.run({"x": pixels(picture)}).values()
    print(decode(scores[0], characters))


def find_model() -> Path:
    """Return the path of the model in the installed package, without importing the package."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps rapidocr-onnxruntime")
    return next(Path(spec.origin).parent.glob("models/*rec_infer.onnx"))


def find_characters(model: Path) -> list[str]:
    """Return the character of each class; class 0 separates repeated characters."""
    metadata = {entry.key: entry.value for entry in onnx.load(model, load_external_data=False).metadata_props}
    return ["", *metadata["character"].splitlines(), " "]


def draw(text: str) -> Image.Image:
    """Draw black text on white."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    ImageDraw.Draw(picture).text((8, 6), text, "black", ImageFont.load_default(32))
    return picture


def pixels(picture: Image.Image) -> np.ndarray:
    """Scale a picture to the height of the model, and pad it to its width: channels first, from -1 to 1."""
    width = min(WIDTH, round(picture.width * HEIGHT / picture.height))
    values = np.asarray(picture.convert("RGB").resize((width, HEIGHT)), np.float32) / 127.5 - 1
    padded = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    padded[0, :, :, :width] = values[:, :, ::-1].transpose(2, 0, 1)
    return padded


def decode(scores: np.ndarray, characters: list[str]) -> str:
    """Return the text: the best class of each column, without repetitions."""
    classes = scores.argmax(axis=-1)
    is_new = np.append(True, classes[1:] != classes[:-1])
    return "".join(characters[index] for index in classes[is_new])


if __name__ == "__main__":
    main()

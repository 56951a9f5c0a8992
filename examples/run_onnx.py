"""Compile an ONNX model, run it on the host, and compare two precisions.

python examples/run_onnx.py model.onnx --symbol batch=1
"""

import argparse

import numpy as np

import qaic


def main() -> None:
    """Run the model in float32 and with the rounding of float16, on the same random inputs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="ONNX file")
    parser.add_argument(
        "--symbol", action="append", default=[], metavar="NAME=SIZE", help="size of a dimension"
    )
    arguments = parser.parse_args()
    symbols = {name: int(size) for name, _, size in (text.partition("=") for text in arguments.symbol)}

    generator = np.random.default_rng(0)
    with (
        qaic.Session(arguments.model, onnx_define_symbol=symbols) as exact,
        qaic.Session(arguments.model, onnx_define_symbol=symbols, convert_to_fp16=True) as rounded,
    ):
        inputs = {
            name: generator.integers(0, 2, shape).astype(dtype)
            if dtype.kind in "iub"
            else generator.random(shape).astype(dtype)
            for name, (shape, dtype) in exact.model_input_shape_dict.items()
        }
        expected, found = exact.run(inputs), rounded.run(inputs)
        for name, values in expected.items():
            difference = np.abs(values.astype(np.float64) - found[name]).max(initial=0)
            print(f"{name}: {values.dtype} {values.shape}, largest difference in fp16 {difference:.3g}")


if __name__ == "__main__":
    main()

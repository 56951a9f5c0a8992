"""Record inferences of a model and write their trace, for chrome://tracing or https://ui.perfetto.dev.

    python examples/profile_trace.py model.onnx trace.json

With the suffix `.pftrace`, the trace has Perfetto's own, smaller format.
"""

import argparse

import numpy as np

import qaic


def random_inputs(session: qaic.Session) -> dict[str, np.ndarray]:
    """Create an array for every input: floats in [0, 1), integers 0 or 1."""
    generator = np.random.default_rng(0)
    return {
        name: generator.random(shape).astype(dtype)
        if dtype.kind == "f"
        else generator.integers(0, 2, shape).astype(dtype)
        for name, (shape, dtype) in session.model_input_shape_dict.items()
    }


def main() -> None:
    """Record inferences of a model and write their trace."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model")
    parser.add_argument("trace")
    arguments = parser.parse_args()

    # Level 70 measures operators. A container that was compiled with this level also works.
    with qaic.Session(arguments.model, stats_level=70) as session:
        inputs = random_inputs(session)
        session.run(inputs)  # the first run includes the start
        with session.profile(samples=20) as profile:
            for _ in session.map(inputs for _ in range(20)):
                pass

    print(profile)
    print(profile.report("ops"))
    profile.trace(arguments.trace)
    print(f"wrote {arguments.trace}")


if __name__ == "__main__":
    main()

"""Record some inferences of a model and write their trace, for chrome://tracing or https://ui.perfetto.dev.

    python examples/profile_trace.py model.onnx trace.json

With the ending `.pftrace` the trace has Perfetto's own, smaller form.
"""

import argparse

import numpy as np

import qaic


def random_inputs(session: qaic.Session) -> dict[str, np.ndarray]:
    """Make an array for every input: floats in [0, 1), integers 0 or 1."""
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

    # Level 70 has the times of operators; a container is as good as a model if it was compiled with it.
    with qaic.Session(arguments.model, stats_level=70) as session:
        inputs = random_inputs(session)
        session.run(inputs)  # the first one pays for the start
        with session.profile(samples=20) as profile:
            for _ in session.map(inputs for _ in range(20)):
                pass

    print(profile)
    print(profile.report("ops"))
    profile.trace(arguments.trace)
    print(f"wrote {arguments.trace}")


if __name__ == "__main__":
    main()

"""Print what a program container holds.

python examples/inspect_qpc.py build/programqpc.bin
"""

import sys

import qaic


def main(path: str) -> None:
    """Print segments, bindings and weights."""
    qpc = qaic.Qpc(path)
    print(f"built for {qpc.target}, {qpc.program_info.num_cores} cores")
    for name, segment in qpc.segments.items():
        print(f"  {segment.size:>12} bytes  {name}")
    for mapping in qpc.buffer_mappings:
        print(f"  {mapping}")


if __name__ == "__main__":
    main(sys.argv[1])

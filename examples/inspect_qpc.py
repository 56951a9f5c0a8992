"""Print the contents of a program container.

python examples/inspect_qpc.py build/programqpc.bin
"""

import argparse

import qaic


def main() -> None:
    """Print the target, segments and buffers of a container."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("container", help="file, or folder that holds programqpc.bin")
    qpc = qaic.Qpc(parser.parse_args().container)
    print(f"built for {qpc.target}, cores: {qpc.program_info.num_cores}")
    for name, segment in qpc.segments.items():
        print(f"  {segment.size:>12} bytes  {name}")
    for mapping in qpc.buffer_mappings:
        print(f"  {mapping}")


if __name__ == "__main__":
    main()

"""Generate tokens with a decoder whose caches stay on the device, through the low-level interface.

The code uses only the vendor's binding, except for the compilation.

python examples/make_model.py --decoder decoder.onnx
python examples/decoder/decode_loop.py decoder.onnx
"""

import argparse
import sys

import numpy as np

import qaic
import QAicApi_pb2 as aicapi
import qaicrt

CHUNK, CONTEXT = 8, 64


def compiled(model: str, folder: str) -> None:
    """Compile a decoder for chunks of the prompt and for single tokens."""
    sizes = {"Prefill": CHUNK, "Decode": 1}
    qaic.Session(
        model,
        output_dir=folder,
        retained_state=True,
        network_specialization_config=[
            {"name": name, "symbols": {"seq_len": size, "ctx_len": CONTEXT}} for name, size in sizes.items()
        ],
    )


class Decoder:
    """A decoder on a device: buffers and dims of all bindings. Each step replaces a few of them."""

    def __init__(self, folder: str, device: int = 0) -> None:
        self.context = qaicrt.Context(qaicrt.QIDList([device]))
        self.queue = qaicrt.Queue(self.context, device)
        qpc = qaicrt.Qpc(folder)
        self.program = qaicrt.Program(self.context, device, qpc, qaicrt.QAicProgramProperties())
        if self.program.load() != qaicrt.QStatus.QS_SUCCESS:
            raise RuntimeError("the program cannot be loaded")
        self.program.activate()
        self.exec_obj = qaicrt.ExecObj(self.context, self.program)

        _, data = qpc.getIoDescriptor()
        description = aicapi.IoDesc()
        description.ParseFromString(bytes(data))
        bindings = description.selected_set.bindings
        self.index = {binding.name: binding.index for binding in bindings}
        self.buffers = [qaicrt.QBuffer(bytes(binding.size)) for binding in bindings]
        self.dims = qaicrt.BufferDimensionsVecRef([(1, [binding.size]) for binding in bindings])
        self.vocabulary = bindings[self.index["logits"]].dims[-1]
        # Caches stay on the device: an empty buffer is not copied in either direction.
        self.set({name: np.array([]) for name in self.index if name.startswith("past_")})

    def set(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the buffers of some bindings."""
        for name, array in arrays.items():
            index = self.index[name]
            self.buffers[index] = qaicrt.QBuffer(array.tobytes())
            self.dims[index] = (array.itemsize, array.shape or (1,))

    def logits(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Run one chunk or one token; shape (tokens, vocabulary)."""
        self.set(
            {
                "input_ids": tokens[None],
                "position_ids": positions[None],
                "logits": np.zeros((1, len(tokens), self.vocabulary), np.float32),
            }
        )
        for status in (
            self.exec_obj.setData(self.buffers, self.dims),
            self.queue.enqueue(self.exec_obj),
            self.exec_obj.waitForCompletion(),
        ):
            if status != qaicrt.QStatus.QS_SUCCESS:
                raise RuntimeError(f"{status.name}; the reason is in the log")
        _, results = self.exec_obj.getData()
        return np.frombuffer(results[self.index["logits"]], np.float32).reshape(-1, self.vocabulary)


def main() -> None:
    """Read a prompt in chunks, then write one token at a time."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="ONNX file of make_model.py --decoder")
    parser.add_argument("--output", default="decoder-qpc", help="folder of the container")
    parser.add_argument("--tokens", type=int, default=16, help="how many to write")
    arguments = parser.parse_args()
    prompt = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
    room = CONTEXT - len(prompt)
    if not 1 <= arguments.tokens <= room:
        sys.exit(f"--tokens is {arguments.tokens}; 1 to {room} fit the context of {CONTEXT}")
    compiled(arguments.model, arguments.output)
    decoder = Decoder(arguments.output)

    for start in range(0, len(prompt), CHUNK):
        piece = prompt[start : start + CHUNK]
        padding = (0, CHUNK - len(piece))
        positions = np.pad(np.arange(start, start + len(piece)), padding, constant_values=-1)
        logits = decoder.logits(np.pad(piece, padding), positions)[len(piece) - 1]
    written = []
    for position in range(len(prompt), len(prompt) + arguments.tokens):
        written.append(int(logits.argmax()))
        logits = decoder.logits(np.array(written[-1:]), np.array([position]))[0]
    print("prompt:", *prompt)
    print("written:", *written)


if __name__ == "__main__":
    main()

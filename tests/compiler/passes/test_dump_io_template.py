"""The file that describes the inputs and outputs of a program."""

import yaml

from compiler_oracle import info, model_of, node
from single_pass import applied, before, content

NAME = "dump-io-template"


def test_template_names_every_tensor_with_its_type(tmp_path):
    target = tmp_path / "template.yaml"
    proto = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    model, context = before(NAME, proto, dump_custom_io_config_template=str(target))
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found
    # The file is written together with the container, not before it.
    assert not target.exists()
    (side_file,) = context.side_files
    side_file.write(side_file.path)
    entries = yaml.safe_load(target.read_text())
    assert [entry["IOName"] for entry in entries] == ["x", "y"]
    assert {entry["Precision"] for entry in entries} == {"float"}

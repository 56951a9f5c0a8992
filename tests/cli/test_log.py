"""Log messages of the compiler in the output of a tool."""

import logging

from qaic.cli.log import logged


def test_equal_messages_of_several_compilations_are_printed_once(capsys):
    for _ in range(2):
        with logged():
            for text in ("first", "first", "second"):
                logging.getLogger("qaic.compiler").warning(text)
        assert capsys.readouterr().err == "warning: first\nwarning: second\n"

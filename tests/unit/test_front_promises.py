"""What the front is told of pods that next calls get, and when nothing is promised."""

from __future__ import annotations

from pathlib import Path

from krm_runner.core import image_ref
from krm_runner.core.function_table import EMPTY_TABLE, FunctionTable
from krm_runner.core.held_call import Destination, Promise
from krm_runner.front.local_functions import LocalFunctions
from krm_runner.front.promises import FrontPromises
from krm_runner.rpc._generated.front_pb2 import ToFront

IMAGE = "example.com/some/function:v1"


def promise(image: str = IMAGE) -> Promise:
    destination = Destination(4, "10.0.0.7:9446", "its-name:9446")
    headers = (("authorization", "Bearer word"),)
    return Promise(image, image_ref.parse(image), destination, headers, 12.5, 2, 1000)


def test_a_promise_is_told_and_taken_back() -> None:
    said: list[ToFront] = []
    promises = FrontPromises()
    promises.promise(promise())
    promises.withdraw(4)
    assert said == [], "nobody is there"
    promises.open(said.append, None)
    promises.promise(promise())
    promises.withdraw(4)
    made, withdrawn = said[0].promise, said[1].withdraw
    assert (made.image, made.connection, made.valid_seconds) == (IMAGE, 4, 12.5)
    assert (made.calls, made.calls_in_all) == (2, 1000)
    assert (made.address, made.authority) == ("10.0.0.7:9446", "its-name:9446")
    assert [(header.name, header.value) for header in made.headers] == [("authorization", "Bearer word")]
    assert withdrawn.connection == 4


def test_a_local_function_comes_first_from_when_the_file_names_it() -> None:
    said: list[ToFront] = []
    tables = [EMPTY_TABLE]
    promises = FrontPromises()
    functions = LocalFunctions(lambda: tables[-1], directory=Path("functions"), default_standby=0)
    promises.open(said.append, functions)
    promises.promise(promise())
    assert len(said) == 1
    tables.append(FunctionTable({image_ref.parse(IMAGE).canonical: "function"}))
    promises.promise(promise())
    assert len(said) == 1
    promises.promise(promise("example.com/another:v1"))
    assert len(said) == 2

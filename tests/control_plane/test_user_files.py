"""Files that users change while the service runs: whatever they write, it serves on, and what is right is in force."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from support.calls import served, wish
from support.client import Client
from support.push import Push
from support.runner import write_config, write_function

KEY = "0123456789abcdef0123456789abcdef\n"
NASTY = {
    "timestamp": "!!timestamp x",
    "bool": "!!bool x",
    "int": "!!int ''",
    "float": "!!float ''",
    "surrogate": '"\\ud800"',
    "recursion": "&a [*a]",
}


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


def write(path: Path, text: str) -> None:
    """In one step, as a mounted ConfigMap changes."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


async def test_no_content_of_any_file_ends_the_service(site: PlayedSite, image: str, tmp_path: Path) -> None:
    write_function(tmp_path / "functions", "here", "#!/bin/sh\ncat\n")
    here = "example.com/here:v1"
    config = write_config(tmp_path / "config.yaml", {"here": [here]})
    cache, images, keys, docker = (tmp_path / name for name in ("cache.yaml", "images.yaml", "keys", "docker.json"))
    write(cache, "[]\n")
    write(images, "images: []\n")
    write(keys, KEY)
    write(docker, "{}\n")
    site.write_template(site.built_in_template())
    flags = (
        f"--config={config}",
        f"--functions={tmp_path / 'functions'}",
        f"--pod-cache-config={cache}",
        f"--image-map={images}",
        f"--pod-token-key-file={keys}",
        "--function-pod-template=template",
        "--enable-private-registries",
        f"--registry-auth-secret-path={docker}",
        "--image-tag-ttl=1s",
    )
    runner = site.start(site.account(), *flags, without="")
    async with Client(runner.address) as client:
        for name, value in NASTY.items():
            seen = len(runner.lines)
            write(config, f"functions: {value} # {name}\n")
            write(cache, f"- name: {value}\n")
            write(images, f"images: {value}\n")
            write(keys, value)
            write(docker, value)
            site.write_template(f"apiVersion: v1\nkind: Pod\nspec: {value}\n")
            async with asyncio.timeout(20):
                while not any("configuration not reloaded" in line for line in runner.lines[seen:]):
                    await asyncio.sleep(0.1)
            assert (await client.evaluate(here, wish())).code == "OK", "the old configuration is in force"
            served(await client.evaluate(image, wish()))
        write_config(config, {"here": [here, "example.com/there:v1"]})
        runner.wait_for_line("event=.configuration reloaded")
        assert (await client.evaluate("example.com/there:v1", wish())).code == "OK", "and so is the next good one"
    assert runner.process.poll() is None
    assert not [line for line in runner.lines if "Traceback" in line or "unexpected" in line]


async def test_a_mapped_function_whose_executable_is_missing_is_served_in_a_pod(
    site: PlayedSite, image: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.yaml", {"absent": [image]})
    flags = (f"--config={config}", f"--functions={tmp_path / 'functions'}")
    runner = site.start(site.account(), *flags, without="")
    runner.wait_for_line('event="configured functions are not there" functions=absent .* because="their images are')
    async with Client(runner.address) as client:
        assert served(await client.evaluate(image, wish())).pod == site.only_pod()["metadata"]["name"]

"""Writing KRM functions in Python: read a ResourceList, change what needs changing, report what was done.

    from krm_function import FunctionError, Package, run

    def set_team(package: Package) -> None:
        team = package.config_data().get("team")
        if not team:
            raise FunctionError("the function config names no team")
        for resource in package.items:
            resource.annotations["example.com/team"] = team
        package.report(f"team {team} set on {len(package.items)} resources")

    if __name__ == "__main__":
        run(set_team)

Comments, order and style of everything that is not changed stay as they are, to the byte. Depends on PyYAML alone, and
on nothing of the runner. Imports as little as it can: every call of a function pays for it. docs/functions.md is the
guide.
"""

from krm_function.function import FunctionError, run
from krm_function.package import Package, Resource

__all__ = ["FunctionError", "Package", "Resource", "run"]

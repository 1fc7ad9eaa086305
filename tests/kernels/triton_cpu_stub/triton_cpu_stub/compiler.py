"""The compiler half of the backend. Only its class is looked at: the interpreter never compiles."""

from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend


class InterpreterOnlyBackend(BaseBackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "interpreter-only"

    def parse_options(self, options: dict) -> NoReturn:
        raise NotImplementedError("set TRITON_INTERPRET=1: this backend cannot compile")

    def add_stages(self, stages: dict, options: object, language: object = None) -> NoReturn:
        raise NotImplementedError("set TRITON_INTERPRET=1: this backend cannot compile")

    def load_dialects(self, context: object) -> None:
        pass

    def get_module_map(self) -> dict:
        return {}

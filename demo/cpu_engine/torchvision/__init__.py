"""A placeholder for torchvision, whose wheels need a GPU build of torch: importing anything works, using it raises.

Text models never use it; SGLang and transformers only import it.
"""

import importlib
import importlib.machinery
import sys
import types

__version__ = "0.28.0"


class _NameOfMember(type):
    """Class attributes that are read at import time (enum-like constants) answer with their own name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _unusable(path):
    def refuse(*args, **kwargs):
        raise RuntimeError(f"{path} is a placeholder: this machine has no torchvision")

    return refuse


class _Module(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        return _member(self.__name__, name)


def _member(parent, name):
    if name.startswith("__"):
        raise AttributeError(name)
    path = f"{parent}.{name}"
    if name[:1].isupper():
        return _NameOfMember(name, (), {"__init__": _unusable(path)})
    return importlib.import_module(path)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return _Module(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(_Finder)


def __getattr__(name):
    return _member(__name__, name)

"""Parser for the kernels that a file declares, and the launchers that are appended to the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A launcher per kernel takes the arguments as cuLaunchKernel does; another function describes them.
_HELPERS = """
namespace emu {
template <class... A, size_t... I>
inline void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<std::remove_reference_t<A>>*>(arguments[I])...);
}
template <class... A>
inline void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>{});
}
template <class T>
constexpr int kind_of() {
  if (std::is_pointer_v<T>) return std::is_const_v<std::remove_pointer_t<T>> ? 'c' : 'p';
  return std::is_floating_point_v<T>   ? 'f'
         : std::is_same_v<T, bool>     ? 'b'
         : std::is_integral_v<T>       ? 'i'
                                       : 's';
}
template <class... A>
inline int describe(void (*)(A...), int* sizes, int* kinds) {
  int count = 0;
  ((sizes[count] = sizeof(A), kinds[count++] = kind_of<A>()), ...);
  return count;
}
}  // namespace emu
"""
_LAUNCHER = """
extern "C" __global__ void emu_run_{index}(void** arguments) {{ emu::call(&{name}, arguments); }}
extern "C" __global__ int emu_describe_{index}(int* sizes, int* kinds) {{
  return emu::describe(&{name}, sizes, kinds);
}}
"""
_BOUNDS = r"__launch_bounds__\s*\(\s*(?P<{}>\w+(?=\s*[,)]))?(?:[^()]|\([^()]*\))*\)\s*"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(
    r'(?P<c>extern\s+"C"\s+)?__global__\s+'
    rf"(?:{_BOUNDS.format('before')})?void\s+(?:{_BOUNDS.format('after')})?(?P<name>\w+)\s*\("
)
_TEMPLATE = re.compile(r"template\s*<[^;{]*?>\s*__global__[^;{(]*?\b(\w+)\s*\(")
_EXTERN_BLOCK = re.compile(r'extern\s+"C"\s*\{')


def without_comments(text: str) -> str:
    return _COMMENT.sub(" ", text)


def launch_bounds(text: str) -> dict[str, int | None]:
    """Return the largest block size per kernel name, by __launch_bounds__; None if that is neither a number nor the
    name of a constant."""
    found = {}
    for match in _KERNEL.finditer(text):
        bound = match["before"] or match["after"] or ""
        number = bound if bound.isdigit() else _constant(bound, text)
        found[match["name"]] = int(number) if number else None
    return found


def _constant(name: str, text: str) -> str | None:
    """Return the number that a macro or a constant stands for, None if there is none."""
    found = re.search(rf"(?:#define\s+{name}\s+|\bint\s+{name}\s*=\s*)(\d+)\b", text) if name else None
    return found and found[1]


def extern_c_kernels(text: str) -> list[str]:
    """Return the kernels declared `extern "C"`, alone or inside an `extern "C" { ... }`."""
    names = [match["name"] for match in _KERNEL.finditer(text) if match["c"]]
    for opening in _EXTERN_BLOCK.finditer(text):
        depth, end = 1, opening.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        names += [match["name"] for match in _KERNEL.finditer(text, opening.end(), end)]
    templates = set(_TEMPLATE.findall(text))
    return [name for name in dict.fromkeys(names) if name not in templates]


def with_launchers(code: str, names: Sequence[str]) -> str:
    launchers = "".join(_LAUNCHER.format(index=index, name=name) for index, name in enumerate(names))
    return f'#line 1 "kernel.cu"\n{code}\n#line 1 "launchers"\n{_HELPERS}{launchers}'

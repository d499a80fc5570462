"""`kstore completion`: prints a script with which a shell completes commands, options and paths."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

from kstore.cli import command_options
from kstore.cli.command_names import COMMANDS, module_of

__all__ = ["run"]

_ABOUT = """\
Print a script for a shell that completes kstore's commands, their options, and paths. It names the commands of this
release, so write it again after an upgrade. The shells load it from these files when it is first needed; bash needs
the package bash-completion for that, and zsh a directory of $fpath."""
_EXAMPLES = """examples:
  kstore completion bash > ~/.local/share/bash-completion/completions/kstore
  kstore completion zsh > ~/.zfunc/_kstore
  kstore completion fish > ~/.config/fish/completions/kstore.fish
"""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("completion", _ABOUT, _EXAMPLES)
    parser.add_argument("shell", choices=tuple(_SCRIPTS))
    asked = parser.parse_args(arguments)
    print(_SCRIPTS[asked.shell](), end="")
    return 0


def _options() -> dict[str, list[str]]:
    """Return the long options of each command, from its help."""
    return {name: _options_of(name) for name in COMMANDS}


def _options_of(name: str) -> list[str]:
    module = importlib.import_module(module_of(name))
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        module.run(["-h"])
    usage = printed.getvalue().partition("\n\n")[0]  # other parts may speak of options of other commands
    return sorted({"--help", *_OPTION.findall(usage), *_listed(printed.getvalue())})


def _listed(text: str) -> list[str]:
    """Return the options that the lists of a help text begin with; the usage shows one name of each."""
    lines = (line for line in text.splitlines() if line.startswith("  -"))
    return [option for line in lines for option in _OPTION.findall(re.split(r"\s{2,}", line.strip())[0])]


def _bash() -> str:
    cases = "\n".join(f'        {name}) words="{" ".join(options)}" ;;' for name, options in _options().items())
    return f"""\
_kstore() {{
    local words="" current="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{" ".join(["help", *COMMANDS])} --help --version --debug"
    elif [ "${{COMP_WORDS[1]}}" = help ]; then
        words="{" ".join(COMMANDS)}"
    elif [ "${{current#-}}" != "$current" ]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    if [ -n "$words" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}}
complete -o default -o bashdefault -F _kstore kstore
"""


def _zsh() -> str:
    commands = "\n".join(f"        {_quoted(f'{name}:{what}')}" for name, what in COMMANDS.items())
    cases = "\n".join(f"        {name}) options=({' '.join(options)}) ;;" for name, options in _options().items())
    return f"""\
#compdef kstore
_kstore() {{
    local -a commands options
    commands=(
{commands}
    )
    if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
        _describe command commands
        return
    fi
    case $words[2] in
{cases}
    esac
    if [[ $words[CURRENT] == -* ]]; then
        compadd -a options
    else
        _files
    fi
}}
if [[ $funcstack[1] == _kstore ]]; then
    _kstore "$@"  # the file is autoloaded as the function
else
    compdef _kstore kstore
fi
"""


def _fish() -> str:
    lines = ["complete -c kstore -n __fish_use_subcommand -l version -l help"]
    for name, what in COMMANDS.items():
        lines.append(f"complete -c kstore -f -n __fish_use_subcommand -a {name} -d {_quoted(what)}")
    for name, options in _options().items():
        flags = " ".join(f"-l {option[2:]}" for option in options)
        lines.append(f"complete -c kstore -n '__fish_seen_subcommand_from {name}' {flags}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as one word of zsh or fish; the descriptions have no quotes and no backslashes."""
    return "'" + text.replace("\\", "").replace("'", "") + "'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}

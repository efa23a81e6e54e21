"""simplicia completion: what the Tab key offers in bash, zsh and fish."""

import argparse
from typing import Annotated, Literal

from simplicia.cli.verbs import VERBS, verb

BASH = """\
_simplicia() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{verbs}"
  elif [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{options}
    esac
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case ${{COMP_WORDS[1]}} in
      {of_recipes}) words="{recipes}" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _simplicia simplicia
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


@verb("completion SHELL")
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], "bash, zsh or fish"]) -> None:
    """Print a script for the Tab key; load it with: source <(simplicia completion bash)."""
    from simplicia.train import recipes

    flags = {name: _flags(name) for name in VERBS}
    of_recipes = [name for name, verb in VERBS.items() if "RECIPE" in verb.usage or name == "recipes"]
    if shell == "fish":
        print("complete -c simplicia -f -n __fish_use_subcommand -a '" + " ".join(VERBS) + "'")
        for name in of_recipes:
            names = " ".join(recipes.names())
            print(f"complete -c simplicia -n '__fish_seen_subcommand_from {name}' -a '{names}'")
        for name, of_verb in flags.items():
            for flag in of_verb:
                option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                print(f"complete -c simplicia -n '__fish_seen_subcommand_from {name}' {option}")
        return
    options = "\n".join(f'      {name}) words="{" ".join(flags[name])}" ;;' for name in VERBS)
    script = BASH.format(
        verbs=" ".join(VERBS),
        options=options,
        of_recipes="|".join(of_recipes),
        recipes=" ".join(recipes.names()),
    )
    print((ZSH if shell == "zsh" else "") + script, end="")


def _flags(name: str) -> list[str]:
    """The options of a verb, without those for old names."""
    actions = VERBS[name].parser([])[0]._actions
    return [flag for action in actions if action.help != argparse.SUPPRESS for flag in action.option_strings]

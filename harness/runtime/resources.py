"""Skills and prompt templates: named texts that become a user prompt (§5.2)."""

from __future__ import annotations

import re
import shlex

import msgspec

_PLACEHOLDER = re.compile(r"\$(ARGUMENTS|@|[1-9][0-9]*)")


class Skill(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Instructions a model can be sent to follow."""

    name: str
    description: str
    content: str
    location: str | None = None


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A prompt with placeholders: `$1`, `$2`, ... and `$@` or `$ARGUMENTS` for all of them."""

    name: str
    content: str
    description: str | None = None


class Resources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What prompts may refer to by name."""

    skills: tuple[Skill, ...] = ()
    prompt_templates: tuple[PromptTemplate, ...] = ()

    def skill(self, name: str) -> Skill | None:
        """The skill of that name."""
        return next((skill for skill in self.skills if skill.name == name), None)

    def template(self, name: str) -> PromptTemplate | None:
        """The template of that name."""
        return next((t for t in self.prompt_templates if t.name == name), None)


def expand_skill(skill: Skill, additional_instructions: str | None) -> str:
    """The prompt that asks the model to follow a skill."""
    location = f' location="{skill.location}"' if skill.location else ""
    text = f'<skill name="{skill.name}"{location}>\n{skill.content}\n</skill>'
    return text if not additional_instructions else f"{text}\n\n{additional_instructions}"


def expand_template(template: PromptTemplate, arguments: tuple[str, ...]) -> str:
    """The template's text with its placeholders replaced; a missing argument becomes empty.

    Replacement is one pass: placeholders inside arguments stay as they are.
    """

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in ("@", "ARGUMENTS"):
            return " ".join(arguments)
        index = int(name) - 1
        return arguments[index] if index < len(arguments) else ""

    return _PLACEHOLDER.sub(replace, template.content)


def split_arguments(text: str) -> tuple[str, ...]:
    """Shell-like splitting of an argument line; falls back to whitespace when quotes are open."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())

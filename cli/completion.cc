// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <sstream>
#include <vector>

#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

/// Words worth offering after an option of a verb, where there are few.
std::string choices(const CLI::App& verb, const std::string& option) {
  if (option == "--causal") return "top_left bottom_right offsets";
  if (option == "--dtype") return verb.get_option_no_throw("--q") != nullptr ? "f64 f32 bf16 f16" : "f32 bf16";
  if (option == "--buckets") return "bidirectional causal";
  if (option == "SHELL") return "bash zsh";
  return {};
}

bool takes_value(const CLI::Option& option) { return option.get_type_size() != 0; }
bool takes_path(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type == "NPY" || type == "OUT" || type == "DIR" || type == "FILE" || type == "FILES";
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<const CLI::App*> verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string option_words(const CLI::App& verb) {
  std::string words;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : names_of(*option)) words += (words.empty() ? "" : " ") + name;
    if (option->get_positional() && !choices(verb, option->get_name()).empty()) {
      words += " " + choices(verb, option->get_name());
    }
  }
  return words;
}

/// Those of a verb and of the words that may follow it, with these.
std::string all_words(const CLI::App& verb) {
  std::string words = option_words(verb);
  for (const CLI::App* inner : verbs(verb)) words += " " + inner->get_name() + " " + option_words(*inner);
  return words;
}

/// Lines of bash that offer the choices after an option of a verb, or of a word that may follow it.
std::string bash_choices(const std::string& name, const CLI::App& verb) {
  std::string text;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& flag : names_of(*option)) {
      const std::string words = choices(verb, flag);
      if (words.empty()) continue;
      text += concat("    '", name, " ", flag, "') COMPREPLY=($(compgen -W '", words, "' -- \"$word\")); return ;;\n");
    }
  }
  for (const CLI::App* inner : verbs(verb)) text += bash_choices(name, *inner);
  return text;
}

std::string bash(const CLI::App& app) {
  std::string verb_words;
  for (const CLI::App* verb : verbs(app)) verb_words += verb->get_name() + " ";
  std::ostringstream text;
  text << "# bash completion for qkv; use it with  eval \"$(qkv completion bash)\"\n"
          "_qkv() {\n"
          "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=''\n"
          "  COMPREPLY=()\n"
          "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
          "    COMPREPLY=($(compgen -W '"
       << verb_words << option_words(app)
       << "' -- \"$word\"))\n    return\n  fi\n  case \"${COMP_WORDS[1]} $before\" in\n";
  for (const CLI::App* verb : verbs(app)) text << bash_choices(verb->get_name(), *verb);
  text << "  esac\n  case ${COMP_WORDS[1]} in\n";
  for (const CLI::App* verb : verbs(app)) {
    text << "    " << verb->get_name() << ") words='" << all_words(*verb) << "' ;;\n";
  }
  text << "  esac\n"
          "  if [[ $word == -* || ${COMP_WORDS[1]} == completion || ( ${COMP_WORDS[1]} == tokenizer && $COMP_CWORD -eq "
          "2 ) ]]; "
          "then\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "  else\n"
          "    compopt -o filenames 2>/dev/null\n"
          "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
          "  fi\n"
          "}\n"
          "complete -F _qkv qkv\n";
  return text.str();
}

/// Text inside '...[...]' of zsh's _arguments.
std::string zsh_quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted;
}

std::string zsh_argument(const CLI::App& verb, const CLI::Option& option) {
  if (!takes_value(option)) return {};
  const std::string words = choices(verb, "--" + (option.get_lnames().empty() ? "" : option.get_lnames().front()));
  if (!words.empty()) return ":value:(" + words + ")";
  return takes_path(option) ? ":file:_files" : ":value: ";
}

std::string zsh(const CLI::App& app) {
  std::ostringstream text;
  text << "#compdef qkv\n"
          "# zsh completion for qkv; save it as _qkv in a folder of $fpath\n"
          "_qkv() {\n"
          "  local -a verbs\n"
          "  verbs=(\n";
  for (const CLI::App* verb : verbs(app)) {
    text << "    '" << verb->get_name() << ":" << zsh_quoted(verb->get_description()) << "'\n";
  }
  text << "  )\n"
          "  if (( CURRENT == 2 )); then\n"
          "    _describe verb verbs\n"
          "    return\n"
          "  fi\n"
          "  local verb=$words[2]\n"
          "  shift words\n"
          "  (( CURRENT-- ))\n"
          "  case $verb in\n";
  for (const CLI::App* verb : verbs(app)) {
    text << "    " << verb->get_name() << ")\n      _arguments -s";
    std::vector<const CLI::Option*> options = verb->get_options();
    for (const CLI::App* inner : verbs(*verb)) {
      const auto more = inner->get_options();
      options.insert(options.end(), more.begin(), more.end());
      text << " \\\n        '1:what to do:(" << inner->get_name() << ")'";
    }
    for (const CLI::Option* option : options) {
      for (const std::string& name : names_of(*option)) {
        text << " \\\n        '" << name << "[" << zsh_quoted(option->get_description()) << "]"
             << zsh_argument(*verb, *option) << "'";
      }
      if (!option->get_positional()) continue;
      const std::string words = choices(*verb, option->get_name());
      text << " \\\n        '1:" << option->get_name() << ":" << (words.empty() ? "_files" : "(" + words + ")") << "'";
    }
    text << "\n      ;;\n";
  }
  text << "  esac\n}\n_qkv \"$@\"\n";
  return text.str();
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash(app);
  if (shell == "zsh") return zsh(app);
  fail("completion: expected bash or zsh, got '", shell, "'");
}

}  // namespace qkv::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/parser.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cli/completion.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"
#include "qkv/version.h"

namespace qkv::cli {
namespace {

constexpr const Verb* kVerbs[] = {&kAttend, &kGrad,     &kJvp,    &kSecond,  &kProbe, &kTokenize, &kTokenizer, &kLogits,
                                  &kEmbed,  &kGenerate, &kSearch, &kConvert, &kCost,  &kInfo,     &kBench};

constexpr const char* kOverview =
    "Problem files hold q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] of one dtype (f64, f32, bf16, f16), or "
    "the\n"
    "same without the first one or two axes. `qkv VERB --help` lists the other tensors and every option.\n"
    "\n"
    "Example:\n"
    "  qkv attend problem.safetensors --causal top_left -o result.safetensors\n"
    "\n"
    "Exit code 0: done; 1: the machine refuses, or a check failed; 2: the call or a file's content is wrong.\n"
    "Completion: add  eval \"$(qkv completion bash)\"  to ~/.bashrc.";

/// The parser of the whole command line. Values land in `call`.
void build(CLI::App& app, Call& call) {
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("qkv ") + version());
  app.get_formatter()->column_width(34);
  for (const Verb* verb : kVerbs) {
    CLI::App* sub = app.add_subcommand(verb->name, verb->summary);
    verb->add(*sub, call);
  }
  CLI::App* completion = app.add_subcommand("completion", "print a script that completes qkv's options in a shell");
  completion->add_option("SHELL", call.shell, "bash or zsh")->required()->type_name("");
}

std::string verb_names() {
  std::string names;
  for (const Verb* verb : kVerbs) names += std::string(verb->name) + ", ";
  return names + "completion";
}

/// A word where the verb belongs, better named here than by the parser.
void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  require(argc >= 2, "no verb given, expected one of ", verb_names(), "; see qkv --help");
  const std::string word = argv[1];
  if (word == "-h" || word == "--help" || word == "--version") return;
  const auto subs = app.get_subcommands([](const CLI::App*) { return true; });
  const bool known =
      std::any_of(subs.begin(), subs.end(), [&](const CLI::App* sub) { return sub->get_name() == word; });
  require(known, "'", word, "' is not a verb, expected one of ", verb_names(), "; see qkv --help");
}

/// What the parser found wrong, in our words where they say more.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  std::string help = "; see qkv ";
  for (auto verbs = app.get_subcommands(); !verbs.empty(); verbs = verbs.front()->get_subcommands()) {
    help += verbs.front()->get_name() + " ";
  }
  help += "--help";
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extra = app.remaining(true);
    fail("unexpected argument '", extra.empty() ? text : extra.front(), "'", help);
  }
  if (const size_t colon = text.find(':');
      dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && colon != std::string::npos) {
    const std::string option = text.substr(0, colon);
    if (text.find("received") != std::string::npos) fail(option, ": expected one value, got several", help);
    if (option == "--causal") fail("--causal: expected ", kCausalChoices, ", got nothing");
    fail(option, ": expected a value, got nothing", help);
  }
  fail(text, help);
}

/// The parser's help and, as written, what we add to it: later versions of CLI11 would reflow a footer.
void print_help(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  const std::string name = chosen.empty() ? "" : chosen.front()->get_name();
  const auto inner = chosen.empty() ? chosen : chosen.front()->get_subcommands();
  std::string text = chosen.empty()  ? app.help()
                     : inner.empty() ? chosen.front()->help("qkv")
                                     : inner.front()->help("qkv " + name);
  for (size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n", at)) text.erase(at, 1);
  while (text.ends_with("\n\n")) text.pop_back();
  if (chosen.empty()) text += std::string("\n") + kOverview + "\n";
  for (const Verb* verb : kVerbs) {
    if (name == verb->name) text += std::string("\n") + verb->details + "\n";
  }
  print(text);
}

}  // namespace

void run(int argc, const char* const* argv) {
  CLI::App app("Exact attention on CPUs: forward, gradients and probes, in memory linear in the number of keys.",
               "qkv");
  Call call;
  build(app, call);
  check_verb(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& wanted) {
    return print(std::string(wanted.what()) + "\n");
  } catch (const CLI::Success&) {
    return print_help(app);
  } catch (const CLI::ParseError& error) {
    refuse(app, error);
  }
  const std::string name = app.get_subcommands().front()->get_name();
  if (name == "completion") return print(completion_script(app, call.shell));
  for (const Verb* verb : kVerbs) {
    if (name == verb->name) verb->run(call);
  }
}

}  // namespace qkv::cli

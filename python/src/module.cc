// SPDX-License-Identifier: Apache-2.0
//
// qkv._core: the library as Python sees it. Errors of the library become ValueError, or TypeError for a dtype; those of
// the machine OSError, or MemoryError for memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <vector>

#include "cli/program.h"
#include "python/src/arrays.h"
#include "python/src/attention.h"
#include "python/src/derivatives.h"
#include "python/src/in_place.h"
#include "python/src/tokenizer.h"
#include "python/src/transformer.h"
#include "python/xla/handler.h"
#include "qkv/kernels/targets.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"
#include "qkv/version.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const MemoryError& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const SystemError& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  } catch (const DtypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  }
}

int run_program(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const nb::gil_scoped_release release;
  return cli::program(static_cast<int>(arguments.size()), pointers.data());
}

}  // namespace
}  // namespace qkv::python

NB_MODULE(_core, module) {
  using namespace qkv;
  nb::register_exception_translator(python::translate);
  python::add_attention(module);
  python::add_derivatives(module);
  python::add_in_place(module);
  python::add_tokenizer(module);
  python::add_transformer(module);
  python::add_xla(module);
  module.def("learn_torch", &python::learn_torch, nb::arg("torch"));
  module.def(
      "version", [] { return std::string(version()); }, "Of the library.");
  module.def("targets", &supported_targets, "Instruction sets that this machine can run, best first.");
  module.def("target", &chosen_target, "The instruction set in use; the environment variable QKV_TARGET forces one.");
  module.def("choose_target", &choose_target, nb::arg("name"),
             "Uses one of targets() from now on. Raises ValueError for another.");
  module.def("available_threads", &available_threads, "CPUs this process may use.");
  module.def("run_program", &python::run_program, nb::arg("arguments"),
             "The command line program; arguments[0] is its name. Returns the exit code.");
}

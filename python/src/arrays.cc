// SPDX-License-Identifier: Apache-2.0
#include "python/src/arrays.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "qkv/support/error.h"

namespace qkv::python {
namespace {

std::string name_of_type(nb::handle object) {
  return nb::cast<std::string>(nb::handle(object.type()).attr("__name__"));
}

template <class... Parts>
[[noreturn]] void type_error(const Parts&... parts) {
  throw nb::type_error(concat(parts...).c_str());
}

/// The dtype of an element in the notation of Python's struct module, native byte order.
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t size) {
  if (format == nullptr) return DType::u8;
  if (*format == '@' || *format == '=' || (*format == '<' && std::endian::native == std::endian::little)) ++format;
  if (*format == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case 'd': return DType::f64;
    case 'f': return DType::f32;
    case 'e': return DType::f16;
    case '?': return DType::boolean;
    case 'B': return DType::u8;
    case 'i':
    case 'l':
    case 'q':
      if (size == 4) return DType::i32;
      if (size == 8) return DType::i64;
      return std::nullopt;
    default: return std::nullopt;
  }
}

std::optional<DType> dtype_of_dlpack(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return std::nullopt;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      if (dtype.bits == 64) return DType::f64;
      if (dtype.bits == 32) return DType::f32;
      if (dtype.bits == 16) return DType::f16;
      return std::nullopt;
    case Code::Bfloat: return dtype.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
    case Code::Bool: return dtype.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
    case Code::UInt: return dtype.bits == 8 ? std::optional(DType::u8) : std::nullopt;
    case Code::Int:
      if (dtype.bits == 32) return DType::i32;
      if (dtype.bits == 64) return DType::i64;
      return std::nullopt;
    default: return std::nullopt;
  }
}

bool is_bfloat16_array(nb::handle array) {
  if (!nb::hasattr(array, "dtype") || !nb::hasattr(array, "view")) return false;
  const nb::object dtype = array.attr("dtype");
  return nb::hasattr(dtype, "name") && nb::cast<std::string>(nb::str(dtype.attr("name"))) == "bfloat16";
}

void check_rank(int64_t rank, const char* name) {
  require(rank <= Dims::kMaxRank, name, " has ", rank, " axes, expected at most ", Dims::kMaxRank);
}

/// What `look_up` gives, kept in `place` for as long as the interpreter lives. An import lets other threads run, which
/// may come here too: so the place is filled afterwards, under the interpreter's lock. As the initialiser of a static
/// it would hold the static's guard, for which the others would wait with that lock in their hands.
template <class T, class LookUp>
const T& looked_up(const T*& place, LookUp look_up) {
  if (place == nullptr) {
    auto found = std::make_unique<const T>(look_up());
    if (place == nullptr) place = found.release();
  }
  return *place;
}

const nb::object& numpy_empty() {
  static const nb::object* function = nullptr;
  return looked_up(function, [] { return nb::object(nb::module_::import_("numpy").attr("empty")); });
}

const nb::object& numpy_bfloat16() {
  static const nb::object* dtype = nullptr;
  return looked_up(dtype, [] {
    try {
      return nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_ImportError)) throw;
      throw nb::import_error("a bfloat16 result needs the package ml_dtypes, which is not installed");
    }
  });
}

const nb::object& numpy_dtype(DType dtype) {
  static const std::vector<nb::object>* dtypes = nullptr;
  const auto look_up = [] {
    std::vector<nb::object> all;
    const nb::object make = nb::module_::import_("numpy").attr("dtype");
    // In the order of DType; bf16 travels as the integer of its width.
    for (const char* name : {"float64", "float32", "uint16", "float16", "bool", "uint8", "int32", "int64"}) {
      all.push_back(make(name));
    }
    return all;
  };
  return looked_up(dtypes, look_up)[static_cast<size_t>(dtype)];
}

/// What a tensor of PyTorch is, once learn_torch() has been called. Lives as long as the interpreter.
struct Torch {
  nb::object tensor;
  std::vector<std::pair<nb::object, DType>> dtypes;
};
const Torch* torch_types = nullptr;

Dims dims_of(nb::handle sizes, const char* name) {
  const Py_ssize_t rank = PyTuple_Size(sizes.ptr());
  check_rank(rank, name);
  Dims dims;
  for (Py_ssize_t axis = 0; axis < rank; ++axis) dims.push_back(PyLong_AsLongLong(PyTuple_GetItem(sizes.ptr(), axis)));
  return dims;
}

/// Nothing for what is not a tensor of PyTorch.
std::optional<TensorView> torch_view(nb::handle array, const char* name) {
  if (torch_types == nullptr || !nb::isinstance(array, torch_types->tensor)) return std::nullopt;
  if (!nb::cast<bool>(array.attr("is_cpu"))) type_error(name, ": expected a tensor in CPU memory");
  const nb::object dtype = array.attr("dtype");
  for (const auto& [object, known] : torch_types->dtypes) {
    if (!dtype.is(object)) continue;
    const auto address = nb::cast<uintptr_t>(array.attr("data_ptr")());
    return TensorView(known, reinterpret_cast<const void*>(address), dims_of(array.attr("shape"), name),
                      dims_of(array.attr("stride")(), name));
  }
  type_error(name, ": expected float64, float32, float16, bfloat16, bool, uint8, int32 or int64, got ",
             nb::cast<std::string>(nb::str(dtype)));
}

}  // namespace

void learn_torch(nb::handle torch) {
  if (torch_types != nullptr) return;
  auto* types = new Torch{torch.attr("Tensor"), {}};
  const std::pair<const char*, DType> names[] = {
      {"float32", DType::f32},  {"float64", DType::f64}, {"bfloat16", DType::bf16}, {"float16", DType::f16},
      {"bool", DType::boolean}, {"uint8", DType::u8},    {"int64", DType::i64},     {"int32", DType::i32}};
  for (const auto& [torch_name, dtype] : names) types->dtypes.emplace_back(torch.attr(torch_name), dtype);
  torch_types = types;
}

Inputs::~Inputs() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool Inputs::add_buffer(nb::handle array) {
  if (PyObject_CheckBuffer(array.ptr()) == 0) return false;
  Py_buffer& buffer = buffers_.emplace_back();
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) == 0) return true;
  PyErr_Clear();
  buffers_.pop_back();
  return false;
}

TensorView Inputs::buffer_view(const char* name, bool is_bfloat16) const {
  const Py_buffer& buffer = buffers_.back();
  check_rank(buffer.ndim, name);
  const std::optional<DType> dtype = is_bfloat16 ? DType::bf16 : dtype_of_format(buffer.format, buffer.itemsize);
  if (!dtype) {
    type_error(name,
               ": expected float64, float32, float16, bfloat16, bool, uint8, int32 or int64 in native byte order, ",
               "got elements of format '", buffer.format, "'");
  }
  Dims shape, strides;
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    shape.push_back(buffer.shape[axis]);
    const bool steps = buffer.shape[axis] > 1;
    require(!steps || buffer.strides[axis] % buffer.itemsize == 0, name, ": axis ", axis, " has a stride of ",
            buffer.strides[axis], " bytes, expected a multiple of the element's ", buffer.itemsize);
    strides.push_back(steps ? buffer.strides[axis] / buffer.itemsize : 0);
  }
  return {*dtype, buffer.buf, shape, strides};
}

TensorView Inputs::dlpack_view(nb::handle array, const char* name) {
  nb::ndarray<nb::ro> tensor;
  if (!nb::try_cast(array, tensor)) {
    type_error(name, ": expected an array (of NumPy, or with __dlpack__), got ", name_of_type(array),
               nb::hasattr(array, "requires_grad")
                   ? " that does not give its memory away: detach() it, or use qkv.torch"
                   : "");
  }
  if (tensor.device_type() != nb::device::cpu::value) type_error(name, ": expected an array in CPU memory");
  check_rank(static_cast<int64_t>(tensor.ndim()), name);
  const std::optional<DType> dtype = dtype_of_dlpack(tensor.dtype());
  if (!dtype) {
    type_error(name,
               ": expected float64, float32, float16, bfloat16, bool, uint8, int32 or int64, got DLPack type code ",
               static_cast<int>(tensor.dtype().code), " of ", static_cast<int>(tensor.dtype().bits), " bits");
  }
  Dims shape, strides;
  for (size_t axis = 0; axis < tensor.ndim(); ++axis) {
    shape.push_back(static_cast<int64_t>(tensor.shape(axis)));
    strides.push_back(tensor.stride(axis));
  }
  tensors_.push_back(tensor);
  return {*dtype, tensor.data(), shape, strides};
}

TensorView Inputs::view(nb::handle array, const char* name) {
  if (const std::optional<TensorView> view = torch_view(array, name)) return *view;
  if (add_buffer(array)) return buffer_view(name, false);
  if (is_bfloat16_array(array) && PyObject_CheckBuffer(array.ptr()) != 0) {
    kept_.push_back(array.attr("view")("uint16"));
    if (add_buffer(kept_.back())) return buffer_view(name, true);
  }
  return dlpack_view(array, name);
}

MutableTensorView Inputs::mutable_view(nb::handle array, const char* name) {
  const size_t buffers = buffers_.size();
  const TensorView result = view(array, name);
  if (buffers_.size() > buffers && buffers_.back().readonly != 0) fail(name, ": expected memory that may be written");
  return {result.dtype(), const_cast<void*>(result.data()), result.shape(), result.strides()};
}

TensorView Inputs::numbers(nb::handle array, const char* name, const char* dtype) {
  if (!nb::isinstance<nb::list>(array) && !nb::isinstance<nb::tuple>(array)) return view(array, name);
  kept_.push_back(nb::module_::import_("numpy").attr("asarray")(array, dtype));
  return view(kept_.back(), name);
}

Output::Output(DType dtype, const Dims& shape) {
  nb::object sizes = nb::steal(PyTuple_New(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    PyTuple_SetItem(sizes.ptr(), axis, PyLong_FromLongLong(shape[axis]));
  }
  array = numpy_empty()(sizes, numpy_dtype(dtype));
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
  view = MutableTensorView(dtype, buffer.buf, shape);
  PyBuffer_Release(&buffer);
  if (dtype == DType::bf16) array = array.attr("view")(numpy_bfloat16());
}

nb::object copied(const Tensor& tensor) {
  Output output(tensor.dtype(), tensor.shape());
  const int64_t bytes = tensor.view().elements() * size_of(tensor.dtype());
  if (bytes > 0) std::memcpy(output.view.data(), tensor.view().data(), static_cast<size_t>(bytes));
  return output.array;
}

}  // namespace qkv::python

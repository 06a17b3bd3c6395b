// DLPack's C exchange (1.2 and newer): a library's own type fills a DLTensor in, with no Python object in between. The
// structs are declared here because the headers of nanobind that the package must build with do not all have them.
#pragma once

#include "array.hpp"

namespace softfold::python {

/// Views objects of exactly this type through the C exchange API that it offers, from now on and instead of any type
/// named before. False, and nothing changes, if it offers none that is understood.
bool use_exchange(nb::handle type);

/// Whether `object` is of the type named last.
bool is_exchanged(nb::handle object);

/// `object`'s fields, valid as long as it lives and keeps its shape. Throws what the library raised.
nb::dlpack::dltensor exchanged(nb::handle object);

}  // namespace softfold::python

// Modules that own their children: chains, lists and tables of modules.

#ifndef WEFT_DTENSOR_NN_CONTAINERS_H_
#define WEFT_DTENSOR_NN_CONTAINERS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"

namespace weft {

// What the containers share: children that live and die with it, in their order. Views given out stay valid as long.
class ModuleContainer : public Module {
 public:
  int size() const { return static_cast<int>(owned_.size()); }
  bool empty() const { return owned_.empty(); }

 protected:
  ModuleContainer() = default;  // a root
  ModuleContainer(Module* parent, std::string name) : Module(parent, std::move(name)) {}

  // Makes a child of class M: its constructor takes (Module* parent, std::string name, args...), as those of modules do.
  // Errors: InvalidArgument for a name that a child has; those of the constructor.
  template <class M, class... Args>
  M& Make(std::string name, Args&&... args) {
    auto made = std::make_unique<M>(this, std::move(name), std::forward<Args>(args)...);
    M& module = *made;
    owned_.push_back(std::move(made));
    return module;
  }

  // Errors: InvalidArgument that names the container, unless 0 <= index < size().
  Module& at(int index) const;

  // A child as the class that it is.
  // Errors: InvalidArgument that names the child, if it is of another.
  template <class M>
  static M& As(Module& module) {
    auto* const typed = dynamic_cast<M*>(&module);
    WEFT_REQUIRE(typed != nullptr, "module '", module.path(), "' is not of the class that was asked for");
    return *typed;
  }

 private:
  std::vector<std::unique_ptr<Module>> owned_;
};

// A chain: each module takes what the one before it made. Children are "0", "1", ..., as in PyTorch, unless named.
//
//   Sequential net;
//   net.Add<Linear>(28 * 28, 128);
//   net.Add<Lambda>([](const DTensor& x) { return Relu(x); });
//   net.Add<Linear>(128, 10);
//
// Shape: that of the first module -> that of the last; of none, its input.
class Sequential : public ModuleContainer {
 public:
  Sequential() = default;  // a root
  Sequential(Module* parent, std::string name) : ModuleContainer(parent, std::move(name)) {}

  // The next link; returns it.
  template <class M, class... Args>
  M& Add(Args&&... args) {
    return Make<M>(absl::StrCat(size()), std::forward<Args>(args)...);
  }
  template <class M, class... Args>
  M& AddNamed(std::string name, Args&&... args) {
    return Make<M>(std::move(name), std::forward<Args>(args)...);
  }

  // Errors: InvalidArgument, unless 0 <= index < size().
  Module& operator[](int index) const { return at(index); }
  template <class M>
  M& Get(int index) const {
    return As<M>(at(index));
  }

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Modules by number: "0", "1", .... It has no forward of its own: its owner calls them.
//
//   ModuleList blocks{this, "blocks"};                         // in the class
//   for (...) blocks.Append<Block>(config);                    // in its constructor
//   for (Module* block : blocks.children()) x = (*block)(x);   // in its Forward
class ModuleList : public ModuleContainer {
 public:
  ModuleList(Module* parent, std::string name) : ModuleContainer(parent, std::move(name)) {}

  // The next; returns it.
  template <class M, class... Args>
  M& Append(Args&&... args) {
    return Make<M>(absl::StrCat(size()), std::forward<Args>(args)...);
  }

  // Errors: InvalidArgument, unless 0 <= index < size().
  Module& operator[](int index) const { return at(index); }
  template <class M>
  M& Get(int index) const {
    return As<M>(at(index));
  }
};

// Modules by key, in the order in which they came. It has no forward of its own: its owner calls them.
class ModuleDict : public ModuleContainer {
 public:
  ModuleDict(Module* parent, std::string name) : ModuleContainer(parent, std::move(name)) {}

  // Errors: InvalidArgument for a key that it has.
  template <class M, class... Args>
  M& Insert(std::string key, Args&&... args) {
    M& module = Make<M>(key, std::forward<Args>(args)...);
    keys_.push_back(std::move(key));
    return module;
  }

  const std::vector<std::string>& keys() const { return keys_; }
  bool Contains(absl::string_view key) const { return Find(key) != nullptr; }
  // Null if it has none.
  Module* Find(absl::string_view key) const;

  // Errors: InvalidArgument that lists the keys there are.
  Module& operator[](absl::string_view key) const;
  template <class M>
  M& Get(absl::string_view key) const {
    return As<M>((*this)[key]);
  }

 private:
  std::vector<std::string> keys_;
};

// A function as a module without parameters, so that it can be a link of a chain.
class Lambda : public Module {
 public:
  Lambda(Module* parent, std::string name, std::function<DTensor(const DTensor& x)> function);

 protected:
  DTensor Forward(const DTensor& x) override { return function_(x); }

 private:
  std::function<DTensor(const DTensor& x)> function_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_CONTAINERS_H_

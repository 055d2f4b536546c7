#include "dtensor/checkpoint/state/state.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

class ModelState final : public StatePart {
 public:
  explicit ModelState(Module& model) : model_(model) {}

  std::vector<StateTensor> Tensors() override {
    std::vector<StateTensor> tensors;
    for (const Parameter* parameter : model_.AllParameters()) {
      tensors.push_back({parameter->path(), parameter->at_rest()});
    }
    for (ModuleBuffer* buffer : model_.AllBuffers()) {
      if (!buffer->spec().persistent) continue;
      const DTensor value = buffer->Value();
      // Whoever holds a buffer's value keeps it as it is.
      const auto set = [buffer, value](const Tensor& piece) {
        buffer->Set(DTensor::FromLocal(value.context(), piece, value.layout(), value.shape()));
      };
      tensors.push_back({buffer->path(), value, set});
    }
    return tensors;
  }

 private:
  Module& model_;
};

class TensorState : public StatePart {
 public:
  using Function = std::function<std::vector<std::pair<std::string, DTensor>>()>;
  explicit TensorState(Function tensors) : tensors_(std::move(tensors)) {}

  std::vector<StateTensor> Tensors() override {
    std::vector<StateTensor> tensors;
    for (auto& [name, tensor] : tensors_()) tensors.push_back({std::move(name), std::move(tensor)});
    return tensors;
  }

 private:
  const Function tensors_;
};

class OptionalTensorState final : public TensorState {
 public:
  OptionalTensorState(std::string prefix, Function tensors)
      : TensorState(std::move(tensors)), prefix_(std::move(prefix)) {}

  bool is_exact() const override { return false; }
  bool Knows(absl::string_view name) override { return absl::StartsWith(name, prefix_); }

  void Load(TensorSource& source) override {
    for (const auto& [name, tensor, set] : Tensors()) {
      const TensorType* const saved = source.Find(name);
      if (saved == nullptr) continue;
      WEFT_REQUIRE(*saved == tensor.type(), "'", source.path(), "': tensor '", name, "' is ",
                   saved->ToString(), ", expected ", tensor.type().ToString());
      CopyTensor(source.Read(name, tensor.LocalBox(), tensor.context()->allocator()), tensor.ToLocal());
      tensor.impl()->MarkWritten("load");
    }
  }

 private:
  const std::string prefix_;
};

class TextState final : public StatePart {
 public:
  TextState(std::string name, std::function<std::string()> save, std::function<void(const std::string&)> load)
      : name_(std::move(name)), save_(std::move(save)), load_(std::move(load)) {}

  std::vector<StateTensor> Tensors() override { return {}; }
  StateTexts Texts() override { return {{name_, save_()}}; }
  void LoadTexts(const StateTexts& texts) override {
    const auto found = texts.find(name_);
    if (found == texts.end()) Throw(absl::StatusCode::kDataLoss, "the checkpoint has no text '", name_, "'");
    load_(found->second);
  }

 private:
  const std::string name_;
  const std::function<std::string()> save_;
  const std::function<void(const std::string&)> load_;
};

class SavedTexts final : public StatePart {
 public:
  explicit SavedTexts(std::function<StateTexts()> texts) : texts_(std::move(texts)) {}

  std::vector<StateTensor> Tensors() override { return {}; }
  StateTexts Texts() override { return texts_(); }

 private:
  const std::function<StateTexts()> texts_;
};

}  // namespace

void State::Add(std::string name, std::shared_ptr<StatePart> part) {
  WEFT_REQUIRE(!name.empty() && part != nullptr, "State::Add: expected a name and a part");
  for (const auto& [known, unused] : parts_) {
    WEFT_REQUIRE(known != name, "State::Add: there is a part '", name, "' already");
  }
  parts_.emplace_back(std::move(name), std::move(part));
}

std::shared_ptr<StatePart> MakeModelState(Module& model) { return std::make_shared<ModelState>(model); }

std::shared_ptr<StatePart> MakeOptimizerState(const Optimizer& optimizer) {
  return MakeTensorState([&optimizer] {
    std::vector<std::pair<std::string, DTensor>> state = optimizer.State();
    for (auto& [name, tensor] : state) name = absl::StrCat("optimizer.", name);
    return state;
  });
}

std::shared_ptr<StatePart> MakeTensorState(
    std::function<std::vector<std::pair<std::string, DTensor>>()> tensors) {
  return std::make_shared<TensorState>(std::move(tensors));
}

std::shared_ptr<StatePart> MakeOptionalTensorState(
    std::string prefix, std::function<std::vector<std::pair<std::string, DTensor>>()> tensors) {
  return std::make_shared<OptionalTensorState>(std::move(prefix), std::move(tensors));
}

std::shared_ptr<StatePart> MakeTextState(std::string name, std::function<std::string()> save,
                                         std::function<void(const std::string& text)> load) {
  return std::make_shared<TextState>(std::move(name), std::move(save), std::move(load));
}

std::shared_ptr<StatePart> MakeTextsState(std::function<StateTexts()> texts) {
  return std::make_shared<SavedTexts>(std::move(texts));
}

}  // namespace weft

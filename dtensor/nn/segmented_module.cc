#include "dtensor/nn/segmented_module.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "dtensor/autograd/recompute.h"

namespace weft {
namespace {

// The number of segment `i`'s first draw, in a call of the model that has come to number `begun`. The first segment goes on from what
// a hook of the model has drawn in this call. The others do not: a rank that runs them does not know how much that was.
uint64_t FirstDraw(uint64_t begun, int i) {
  constexpr int kDrawBits = 32;  // for more draws than any segment makes
  return i == 0 ? begun : ((begun >> kDrawBits) + static_cast<uint64_t>(i)) << kDrawBits;
}

}  // namespace

const std::vector<Segment>& SegmentedModule::segments() {
  if (segments_.empty()) {
    segments_ = MakeSegments();
    WEFT_REQUIRE(!segments_.empty(), "module '", path(), "': expected at least one segment, got none");
    // What a slot is another name of has to be there, too.
    for (Segment& segment : segments_) {
      for (Parameter*& parameter : segment.parameters) {
        if (parameter->tied_to() != nullptr) parameter = parameter->tied_to();
      }
      for (Module* module : segment.modules) {
        const std::vector<Parameter*> tied = module->TiedParameters();
        segment.parameters.insert(segment.parameters.end(), tied.begin(), tied.end());
      }
    }
    FindShared();
  }
  return segments_;
}

void SegmentedModule::FindShared() {
  std::map<const Module*, int> num_segments;  // that have it: they name it or one above
  shared_.resize(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    std::set<const Module*> here;
    for (Module* module : segments_[i].modules) {
      for (const Module* each : module->AllModules()) {
        if (!here.insert(each).second) continue;
        shared_[i].push_back(each);
        ++num_segments[each];
      }
    }
  }
  for (std::vector<const Module*>& modules : shared_) {
    std::erase_if(modules, [&](const Module* each) { return num_segments[each] == 1; });
  }
}

DTensors SegmentedModule::RunChain(int begin, int end, uint64_t begun, DTensors inputs) {
  RankState& state = context()->state();
  const std::vector<Segment>& chain = segments();  // first of all: what is shared is found with them
  for (int i = begin; i < end; ++i) {
    const uint64_t number = FirstDraw(begun, i);
    state.set_call_number(number);
    for (const Module* module : shared_[i]) {
      const PathGuard shared(state, state.PathId(module->full_path()));
      state.set_call_number(number);
    }
    inputs = chain[i].run(inputs);
  }
  return inputs;
}

DTensors SegmentedModule::RunSegments(int begin, int end, DTensors inputs, DTensors* first_made) {
  const uint64_t begun = context()->state().call_number();  // not 0 where a model calls this one again
  for (int i = begin; i < end;) {
    const RecomputedSegments* const group = GroupOf(i);
    const bool is_asked_for = i == begin && first_made != nullptr;
    const int next = group != nullptr && !is_asked_for ? std::min(group->end, end) : i + 1;
    if (group == nullptr) {
      inputs = RunChain(i, next, begun, std::move(inputs));
    } else {
      const auto run = [this, i, next, begun](const DTensors& x) { return RunChain(i, next, begun, x); };
      // What the group was given lies where the module that takes it would have it.
      const std::vector<Module*>& takers = segments()[i].modules;
      RankState& state = context()->state();
      const SaveOnHostGuard saves(state, takers.empty() ? state.saves_on_host() : takers[0]->SavesOnHost());
      inputs = Recompute(WhileItLives(run), inputs, group->how.keep);
    }
    if (is_asked_for) *first_made = inputs;
    i = next;
  }
  context()->state().set_call_number(FirstDraw(begun, end));  // so that another call draws anew
  return inputs;
}

const RecomputedSegments* SegmentedModule::GroupOf(int i) {
  for (const RecomputedSegments& group : recomputed_) {
    if (i >= group.begin && i < group.end) {
      return Recomputes(context()->state(), group.how) ? &group : nullptr;
    }
  }
  return nullptr;
}

void SegmentedModule::add_recomputed_segments(std::vector<RecomputedSegments> groups) {
  for (const RecomputedSegments& group : groups) {
    const bool overlaps = std::any_of(
        recomputed_.begin(), recomputed_.end(),
        [&](const RecomputedSegments& other) { return group.begin < other.end && other.begin < group.end; });
    WEFT_REQUIRE(
        group.begin >= 0 && group.end > group.begin && group.end <= std::ssize(segments()) && !overlaps,
        "module '", path(), "': expected groups of segments from 0 up to ", segments().size(),
        ", each in one group, got ", group.begin, " up to ", group.end);
    recomputed_.push_back(group);
  }
}

std::vector<Parameter*> SegmentedModule::ParametersOfSegments(int begin, int end) {
  std::vector<Parameter*> parameters;
  const auto add = [&](Parameter* parameter) {
    const bool is_new = std::find(parameters.begin(), parameters.end(), parameter) == parameters.end();
    if (is_new && parameter->is_here()) parameters.push_back(parameter);
  };
  for (int i = begin; i < end; ++i) {
    for (Module* module : segments()[i].modules) {
      for (Parameter* parameter : module->AllParameters()) add(parameter);
    }
    for (Parameter* parameter : segments()[i].parameters) add(parameter);
  }
  return parameters;
}

DTensor SegmentedModule::Forward(const DTensor& x) {
  if (stages_ && stages_->num_stages() > 1) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", path(), "' is cut into ", stages_->num_stages(),
          " stages: a PipelineExecutor runs it");
  }
  const int end = static_cast<int>(segments().size());
  return RunSegments(0, end, {x})[0];
}

const ModelParts* PartsOf(const Module& model) {
  const auto* const segmented = dynamic_cast<const SegmentedModule*>(&model);
  if (segmented != nullptr && segmented->stages()) return &*segmented->stages();
  return model.parts();
}

}  // namespace weft

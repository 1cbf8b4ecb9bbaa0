// All experts of a layer in one call.
//
//     G = w1 h,  U = w3 h  (stored);  a = silu(min(G, limit)) * clamp(U) * weight  (stored);  out = w2 round(a)  (stored)
//
// A visit is one row at one expert; the visits of an expert lie together and its bytes are read once.  Two sweeps:
//   1. item = 32 rows of w1 and of w3 of one expert: both products and the activation, which is made ready for w2
//   2. item = some rows of w2 of every expert: outputs, added per row in ascending expert id
#pragma once

namespace flash41 {

class ExpertJob {
 public:
  ExpertJob(int threads, const Experts& job) : threads_(threads), job_(job), x_(job.x), shared_(job.bank[job.num_visited]) {}

  void run(Scratch& memory) {
    num_visits_ = x_.rows * (job_.topk + 1);
    inner_ = shared_.w1.rows;
    for (int64_t e = 0; e <= job_.num_visited; ++e) {
      inputs_[job_.bank[e].w1.format] = inputs_[job_.bank[e].w3.format] = true;
      middles_[job_.bank[e].w2.format] = true;
    }
    Cutter counting(nullptr);
    lay_out(counting);
    Cutter cutter(memory.take(counting.used()));
    lay_out(cutter);
    find_visits();
    parallel(x_.rows > 8 ? threads_ : 1, x_.rows, [&](int64_t row) { input_.prepare(row, x_); });
    gather();
    int64_t pieces = (inner_ + GROUP - 1) / GROUP;
    parallel(threads_, (job_.num_visited + 1) * pieces, [&](int64_t item) { up(item / pieces, item % pieces * GROUP); });
    gather_middle();
    int64_t step = share(threads_, x_.width, 64);
    parallel(threads_, (x_.width + step - 1) / step, [&](int64_t item) {
      down(item * step, std::min(x_.width, (item + 1) * step));
    });
  }

 private:
  void lay_out(Cutter& cutter) {
    input_ = Inputs(cutter, x_, job_.quantize != 0, inputs_);
    for (int format = 0; format < 4; ++format) {
      middle_[format] = Ready(cutter, middles_[format] ? num_visits_ : 0, inner_, format, job_.quantize != 0);
      gate_rows_[format] = cutter.cut<Row>(inputs_[format] ? num_visits_ : 0);
      middle_rows_[format] = cutter.cut<Row>(middles_[format] ? num_visits_ : 0);
      gate_blocks_[format] = Blocks(cutter, inputs_[format] ? num_visits_ : 0, x_.width, job_.num_visited + 1);
      middle_blocks_[format] = Blocks(cutter, middles_[format] ? num_visits_ : 0, inner_, job_.num_visited + 1);
    }
    row_ = cutter.cut<int64_t>(num_visits_);
    weight_ = cutter.cut<float>(num_visits_);
    first_ = cutter.cut<int64_t>(job_.num_visited + 2);
  }

  // Visits expert by expert in ascending id, rows ascending; the shared expert is the last one and sees every row.
  void find_visits() {
    int64_t visit = 0;
    for (int64_t e = 0; e < job_.num_visited; ++e) {
      first_[e] = visit;
      for (int64_t place = 0; place < x_.rows * job_.topk; ++place)
        if (job_.ids[place] == job_.visited[e]) {
          row_[visit] = place / job_.topk;
          weight_[visit++] = job_.weights[place];
        }
    }
    first_[job_.num_visited] = visit;
    for (int64_t row = 0; row < x_.rows; ++row) {
      row_[visit] = row;
      weight_[visit++] = 1.0f;
    }
    first_[job_.num_visited + 1] = visit;
  }

  void gather() {
    for (int format = 0; format < 4; ++format) {
      if (!inputs_[format]) continue;
      for (int64_t visit = 0; visit < first_[job_.num_visited + 1]; ++visit)
        gate_rows_[format][visit] = input_.rows(format)[row_[visit]];
      pack(gate_blocks_[format], gate_rows_[format]);
    }
  }

  void gather_middle() {
    for (int format = 0; format < 4; ++format) {
      if (!middles_[format]) continue;
      for (int64_t visit = 0; visit < first_[job_.num_visited + 1]; ++visit) middle_rows_[format][visit] = middle_[format].row(visit);
      pack(middle_blocks_[format], middle_rows_[format]);
    }
  }

  void pack(Blocks& blocks, Row* rows) {
    for (int64_t e = 0; e <= job_.num_visited; ++e)
      if (first_[e + 1] > first_[e]) blocks.add(rows + first_[e], first_[e + 1] - first_[e], first_[e]);
    blocks.pack(threads_);
  }

  vf stored(vf value) const { return x_.dtype == BF16 ? rounded_bf16(value) : value; }

  void up(int64_t e, int64_t channel) {
    static thread_local Scratch memory;
    const Expert& expert = job_.bank[e];
    int64_t visits = first_[e + 1] - first_[e], last = std::min(inner_, channel + GROUP);
    float* gate = reinterpret_cast<float*>(memory.take(static_cast<size_t>(2 * visits * GROUP) * sizeof(float)));
    float* raise = gate + visits * GROUP;
    std::memset(static_cast<void*>(gate), 0, static_cast<size_t>(2 * visits * GROUP) * sizeof(float));
    product(expert.w1, channel, last, gate_rows_[expert.w1.format] + first_[e], visits, x_.width, gate, GROUP);
    product(expert.w3, channel, last, gate_rows_[expert.w3.format] + first_[e], visits, x_.width, raise, GROUP);
    vf limit = all(job_.limit);
    for (int64_t m = 0; m < visits; ++m) {
      vf v[STEPS];
      for (int i = 0; i < STEPS; ++i) {
        vf g = minimum(limit, stored(load(gate + m * GROUP + LANES * i)));
        vf u = minimum(limit, maximum(-limit, stored(load(raise + m * GROUP + LANES * i))));
        v[i] = stored(sigmoid(g) * g * u * all(weight_[first_[e] + m]));
      }
      middle_[expert.w2.format].put(first_[e] + m, channel / GROUP, v);
    }
  }

  void down(int64_t from, int64_t to) {
    static thread_local Scratch memory;
    for (int64_t row = 0; row < x_.rows; ++row)
      std::memset(job_.routed + row * x_.width + from, 0, static_cast<size_t>(to - from) * sizeof(float));
    for (int64_t e = 0; e < job_.num_visited; ++e) {
      const Expert& expert = job_.bank[e];
      int64_t visits = first_[e + 1] - first_[e], span = to - from;
      float* output = reinterpret_cast<float*>(memory.take(static_cast<size_t>(visits * span) * sizeof(float)));
      product(expert.w2, from, to, middle_rows_[expert.w2.format] + first_[e], visits, inner_, output, span);
      for (int64_t m = 0; m < visits; ++m) {
        float* sum = job_.routed + row_[first_[e] + m] * x_.width + from;
        for (int64_t n = 0; n < span; ++n) {
          float value = output[m * span + n];
          sum[n] += x_.dtype == BF16 ? rounded_bf16(value) : value;
        }
      }
    }
    const Row* middle = middle_rows_[shared_.w2.format] + first_[job_.num_visited];
    store_product(shared_.w2, from, to, middle, x_.rows, inner_, job_.shared, x_.width, 0, x_.dtype);
  }

  int threads_;
  const Experts& job_;
  const Rows& x_;
  const Expert& shared_;
  int64_t num_visits_ = 0, inner_ = 0;
  bool inputs_[4] = {}, middles_[4] = {};
  Inputs input_;
  Ready middle_[4] = {};
  Row* gate_rows_[4] = {};
  Row* middle_rows_[4] = {};
  Blocks gate_blocks_[4] = {};
  Blocks middle_blocks_[4] = {};
  int64_t* row_ = nullptr;
  float* weight_ = nullptr;
  int64_t* first_ = nullptr;
};

inline void experts(int threads, const Experts* job) {
  static thread_local Scratch memory;
  int64_t bytes = weight_bytes(job->bank[0].w1) * job->x.rows * (job->topk + 1);
  ExpertJob(helpers(threads, bytes), *job).run(memory);
}

}  // namespace flash41

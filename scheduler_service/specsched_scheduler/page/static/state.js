// What the scheduler told so far. Pure.

/** `whole` with the news of `change` in it; histories are extended, the rest is replaced. */
export function merged(whole, change) {
  const executors = change.executors.map((after, index) => {
    const before = whole.executors[index].decisions;
    const seconds = united(before.seconds, after.decisions.seconds, "time_s");
    const decisions = {
      ...after.decisions,
      seconds: seconds.slice(-change.num_seconds),
      sizes: united(before.sizes, after.decisions.sizes, "num_requests"),
    };
    return { ...after, decisions };
  });
  return { ...change, executors };
}

function united(before, after, key) {
  const rows = new Map(before.map((each) => [each[key], each]));
  for (const each of after) rows.set(each[key], each);
  return [...rows.values()].sort((one, other) => one[key] - other[key]);
}

/** The executor to show: the one that was picked, else one that follows this scheduler, else any. */
export function shownExecutor(state, pickedSlot) {
  return (
    state.executors.find((each) => each.slot === pickedSlot) ??
    state.executors.find((each) => each.role === "active") ??
    state.executors[0] ??
    null
  );
}

// A Vega-Lite chart that is drawn once; afterwards only rows travel. `rows` maps the names of its datasets to lists of rows.
async function liveChart(box, spec, rows, text) {
  const tooltip = { theme: "custom", disableDefaultStyle: true };
  const whole = { ...structuredClone(spec), description: text, datasets: rows };
  const api = await vegaEmbed(box, whole, { actions: false, renderer: "svg", tooltip });
  return {
    async update(fresh, text) {
      for (const [name, list] of Object.entries(fresh)) {
        api.view.change(name, api.view.changeset().remove(() => true).insert(list));
      }
      api.view.description(text); // Vega owns aria-label of its container
      await api.view.resize().runAsync(); // without resize() new labels are clipped
    },
    end: () => api.finalize(),
  };
}

"use strict";
// Charts of the live page and of reports: uPlot with our axes, colours and formats. The values under the pointer are in
// the legend; dragging zooms into a time, a double click shows everything again.
const umstackCharts = (() => {
  const FONT = "11px system-ui, sans-serif", WIDTH_MIN = 120;
  const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

  // Colours are CSS colours or custom properties of the page, which follow its colour scheme.
  const paint = (color) => color.startsWith("--")
    ? () => getComputedStyle(document.documentElement).getPropertyValue(color).trim() : color;
  const shower = (show, unit) => {
    const text = show || ((value) => number.format(value));
    return (value) => value === null || value === undefined ? "-" : text(value) + (unit ? " " + unit : "");
  };

  // Of a logarithmic axis, 1, 2 and 5 of each power of ten have labels: powers alone are too few within one decade.
  const readable = (_chart, at) => at.map((one) => /^[125](\.?0*)?e/.test(one.toExponential(6)) ? one : null);

  function options(description, width) {
    const { x, y, series } = description;
    const showX = shower(x.show, x.unit), showY = shower(y.show, y.unit);
    const axis = { stroke: paint(description.ink || "#5a6673"), font: FONT, labelFont: FONT, labelSize: 18,
                   grid: { stroke: paint(description.grid || "#d8dde6"), width: 1 } };
    axis.ticks = axis.grid;
    return {
      width, height: description.height,
      cursor: { drag: { x: true, y: false }, sync: description.sync ? { key: description.sync } : undefined },
      scales: {
        x: { time: false, distr: x.log ? 3 : 1 },
        y: { range: (_chart, _low, high) => [0, Math.max(high || 0, y.floor || 0) * 1.05 || 1] },
      },
      axes: [
        { ...axis, label: x.label, size: 30, ...(x.log ? { filter: readable } : {}), values: (_chart, at) => at.map((one) => one === null ? "" : number.format(one)) },
        { ...axis, ...(y.label ? { label: y.label } : { labelSize: 0 }), size: 58, values: (_chart, at) => at.map((one) => (y.show || number.format)(one)) },
      ],
      series: [
        { label: x.name, value: (_chart, value) => showX(value) },
        ...series.map((one) => ({
          label: one.label, stroke: paint(one.color), width: 1.75, points: { show: false },
          value: (_chart, value) => showY(value),
          ...(one.fill ? { fill: paint(one.color), width: 0 } : {}),
          ...(one.steps ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
        })),
      ],
    };
  }

  // Draws a chart into an element, as its property `chart`, and keeps it as wide as the element.
  function draw(element, description, data) {
    const width = () => Math.max(element.clientWidth, WIDTH_MIN);
    const chart = new uPlot(options(description, width()), data, element);
    new ResizeObserver(() => { if (chart.width !== width()) chart.setSize({ width: width(), height: description.height }); })
      .observe(element);
    element.chart = chart;
    return chart;
  }

  // Replaces a chart's data. A part that was zoomed into stays.
  function update(chart, data) {
    const [times] = chart.data, { min, max } = chart.scales.x;
    const isZoomed = times.length > 1 && (min > times[0] || max < times[times.length - 1]);
    chart.setData(data, !isZoomed);
    if (isZoomed) chart.redraw();
  }

  return { draw, update };
})();

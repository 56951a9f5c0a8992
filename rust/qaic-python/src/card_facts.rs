//! What a card says of itself, as dictionaries: `qaicrt.Util` and the tools put them into their forms.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::device::kmd::{CardFacts, FirmwareFacts, PerformanceFacts, ResourceFacts};

/// Node, address, names, sensors, and what the firmware answers; where it does not, `reason` says why.
pub(crate) fn card<'py>(py: Python<'py>, facts: &CardFacts) -> PyResult<Bound<'py, PyDict>> {
    let CardFacts { node, telemetry, memory_errors, firmware } = facts;
    let entry = PyDict::new(py);
    entry.set_item("node", node.path.as_deref())?;
    let place = node.address;
    entry.set_item("address", (place.domain, place.bus, place.device, place.function))?;
    let pci = node.pci.as_ref().map(|pci| -> PyResult<_> {
        let names = PyDict::new(py);
        names.set_item("vendor_id", pci.vendor_id)?;
        names.set_item("device_id", pci.device_id)?;
        names.set_item("class_name", &pci.class_name)?;
        names.set_item("vendor_name", &pci.vendor_name)?;
        names.set_item("device_name", &pci.device_name)?;
        names.set_item("max_link_speed", pci.max_link_speed)?;
        names.set_item("max_link_width", pci.max_link_width)?;
        names.set_item("current_link_speed", pci.current_link_speed)?;
        names.set_item("current_link_width", pci.current_link_width)?;
        names.set_item("bar2_address", pci.bar2_address)?;
        names.set_item("bar4_address", pci.bar4_address)?;
        Ok(names)
    });
    entry.set_item("pci", pci.transpose()?)?;
    entry.set_item("soc_temperature_millicelsius", telemetry.soc_temperature_millicelsius)?;
    entry.set_item("board_power_microwatts", telemetry.board_power_microwatts)?;
    entry.set_item("tdp_cap_microwatts", telemetry.tdp_cap_microwatts)?;
    entry.set_item("memory_errors_correctable", memory_errors.correctable)?;
    entry.set_item("memory_errors_uncorrectable", memory_errors.uncorrectable)?;
    entry.set_item("memory_errors_uncorrectable_nonfatal", memory_errors.uncorrectable_nonfatal)?;
    match firmware {
        Ok(answer) => {
            entry.set_item("firmware", self::firmware(py, answer)?)?;
            entry.set_item("reason", py.None())?;
        }
        Err(error) => {
            entry.set_item("firmware", py.None())?;
            entry.set_item("reason", error.to_string())?;
        }
    }
    Ok(entry)
}

fn firmware<'py>(py: Python<'py>, facts: &FirmwareFacts) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("format_version", facts.format_version)?;
    // A tuple: an array of bytes would become `bytes`.
    let [major, minor, patch, build] = facts.version;
    entry.set_item("version", (major, minor, patch, build))?;
    entry.set_item("features", facts.features)?;
    entry.set_item("qc_version", &facts.qc_version)?;
    entry.set_item("oem_version", &facts.oem_version)?;
    entry.set_item("variant", &facts.variant)?;
    entry.set_item("hw_version", facts.hw_version)?;
    entry.set_item("serial", &facts.serial)?;
    entry.set_item("board_serial", &facts.board_serial)?;
    entry.set_item("resources", resources(py, &facts.resources)?)?;
    entry.set_item("performance", performance(py, &facts.performance)?)?;
    entry.set_item("constants_loaded", facts.constants_loaded)?;
    entry.set_item("constants_in_use", facts.constants_in_use)?;
    entry.set_item("networks_loaded", facts.networks_loaded)?;
    entry.set_item("networks_active", facts.networks_active)?;
    entry.set_item("metadata_version", facts.metadata_version)?;
    entry.set_item("command_version", facts.command_version)?;
    entry.set_item("sbl_image", &facts.sbl_image)?;
    entry.set_item("pvs_image_version", facts.pvs_image_version)?;
    entry.set_item("nsp_defective_mask", facts.nsp_defective_mask)?;
    entry.set_item("retired_pages", facts.retired_pages)?;
    entry.set_item("needs_reset_to_retire_pages", facts.needs_reset_to_retire_pages)?;
    entry.set_item("sku_type", facts.sku_type)?;
    let [major, minor, patch, build] = facts.nsp_version;
    entry.set_item("nsp_version", (major, minor, patch, build))?;
    entry.set_item("nsp_qc_version", &facts.nsp_qc_version)?;
    entry.set_item("nsp_oem_version", &facts.nsp_oem_version)?;
    entry.set_item("nsp_variant", &facts.nsp_variant)?;
    Ok(entry)
}

fn resources<'py>(py: Python<'py>, facts: &ResourceFacts) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    for (name, figure) in [
        ("dram_total_mb", facts.dram_total_mb),
        ("dram_free_mb", facts.dram_free_mb),
        ("fragmentation", facts.fragmentation),
        ("vc_total", facts.vc_total.into()),
        ("vc_free", facts.vc_free.into()),
        ("nsp_total", facts.nsp_total.into()),
        ("nsp_free", facts.nsp_free.into()),
        ("mcid_total", facts.mcid_total),
        ("mcid_free", facts.mcid_free),
        ("semaphore_total", facts.semaphore_total),
        ("semaphore_free", facts.semaphore_free),
        ("pc_total", facts.pc_total.into()),
        ("pc_reserved", facts.pc_reserved.into()),
    ] {
        entry.set_item(name, figure)?;
    }
    Ok(entry)
}

fn performance<'py>(py: Python<'py>, facts: &PerformanceFacts) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    for (name, figure) in [
        ("nsp_hz", facts.nsp_hz.into()),
        ("ddr_hz", facts.ddr_hz.into()),
        ("compnoc_hz", facts.compnoc_hz.into()),
        ("memnoc_hz", facts.memnoc_hz.into()),
        ("sysnoc_hz", facts.sysnoc_hz.into()),
        ("peak_compute_ops", facts.peak_compute_ops),
        ("dram_kb_per_s", facts.dram_kb_per_s),
    ] {
        entry.set_item(name, figure)?;
    }
    Ok(entry)
}

//! What a card says of itself, as dictionaries: `qaicrt.Util` and the tools put them into their forms.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_kmd::protocol::{PerformanceInfo, ResourceInfo};
use qaic_runtime::device::card::{CardFacts, FirmwareFacts};

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
    let FirmwareFacts { status, features } = facts;
    let entry = PyDict::new(py);
    entry.set_item("format_version", status.format_version)?;
    // A tuple: an array of bytes would become `bytes`.
    let [major, minor, patch, build] = status.firmware_version();
    entry.set_item("version", (major, minor, patch, build))?;
    entry.set_item("features", features)?;
    entry.set_item("qc_version", status.qc_image_version.to_string())?;
    entry.set_item("oem_version", status.oem_image_version.to_string())?;
    entry.set_item("variant", status.image_variant.to_string())?;
    entry.set_item("hw_version", status.hw_version)?;
    entry.set_item("serial", status.serial.to_string())?;
    entry.set_item("board_serial", status.board_serial.to_string())?;
    entry.set_item("resources", resources(py, &status.resources)?)?;
    entry.set_item("performance", performance(py, &status.performance)?)?;
    entry.set_item("constants_loaded", status.num_loaded_consts)?;
    entry.set_item("constants_in_use", status.num_consts_in_use)?;
    entry.set_item("networks_loaded", status.num_loaded_nws)?;
    entry.set_item("networks_active", status.num_active_nws)?;
    entry.set_item("metadata_version", status.metadata_version())?;
    entry.set_item("command_version", status.command_protocol())?;
    entry.set_item("sbl_image", status.sbl_image_name.to_string())?;
    entry.set_item("pvs_image_version", status.pvs_image_version)?;
    entry.set_item("nsp_defective_mask", status.nsp_pgmask)?;
    entry.set_item("retired_pages", status.num_retired_pages)?;
    entry.set_item("needs_reset_to_retire_pages", status.need_reset_to_retire_pages != 0)?;
    entry.set_item("sku_type", status.sku_type)?;
    let [major, minor, patch, build] = status.nsp_version();
    entry.set_item("nsp_version", (major, minor, patch, build))?;
    entry.set_item("nsp_qc_version", status.nsp_qc_image_version.to_string())?;
    entry.set_item("nsp_oem_version", status.nsp_oem_image_version.to_string())?;
    entry.set_item("nsp_variant", status.nsp_image_variant.to_string())?;
    Ok(entry)
}

fn resources<'py>(py: Python<'py>, info: &ResourceInfo) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    for (name, figure) in [
        ("dram_total_mb", info.dram_total_mb),
        ("dram_free_mb", info.dram_free_mb),
        ("fragmentation", info.fragmentation),
        ("vc_total", info.vc_total.into()),
        ("vc_free", info.vc_free.into()),
        ("nsp_total", info.nsp_total.into()),
        ("nsp_free", info.nsp_free.into()),
        ("mcid_total", info.mcid_total),
        ("mcid_free", info.mcid_free),
        ("semaphore_total", info.sem_total),
        ("semaphore_free", info.sem_free),
        ("pc_total", info.pc_total.into()),
        ("pc_reserved", info.pc_reserved.into()),
    ] {
        entry.set_item(name, figure)?;
    }
    Ok(entry)
}

fn performance<'py>(py: Python<'py>, info: &PerformanceInfo) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    for (name, figure) in [
        ("nsp_hz", info.nsp_hz.into()),
        ("ddr_hz", info.ddr_hz.into()),
        ("compnoc_hz", info.compnoc_hz.into()),
        ("memnoc_hz", info.memnoc_hz.into()),
        ("sysnoc_hz", info.sysnoc_hz.into()),
        ("peak_compute_ops", info.peak_compute),
        ("dram_kb_per_s", info.dram_bw_kb_per_s),
    ] {
        entry.set_item(name, figure)?;
    }
    Ok(entry)
}
